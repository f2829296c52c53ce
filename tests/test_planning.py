"""What a plan pins, and what changes it."""

import shutil
import sys
from pathlib import Path

import pytest

from qualify.errors import UsageError
from qualify.inputs import read_inputs
from qualify.plan import UNBOUND, Plan
from qualify.planning import make_plan
from qualify.transcript import Arm
from tests.projects import ROOT, Project, make_project


def plan(project: Project, urls: dict[Arm, str] | None = None, **options) -> Plan:
    return make_plan(read_inputs(project.release, **options), urls or {}, project.root / "models").plan


def test_plan_is_the_same_in_another_directory(project, tmp_path_factory):
    other = make_project(tmp_path_factory.mktemp("elsewhere"))
    assert plan(project) == plan(other)
    assert str(project.root) not in str(plan(project).arms)


def changed_arms(before: Plan, after: Plan) -> set[Arm]:
    old = {arm.arm: arm.stage_sha256 for arm in before.arms}
    return {arm.arm for arm in after.arms if old[arm.arm] != arm.stage_sha256}


@pytest.mark.parametrize(
    ("changes", "arms"),
    [
        ({"arms__baseline__environment": {"A": "1"}}, set(Arm)),
        ({"arms__candidate__environment": {"A": "1"}}, {Arm.CANDIDATE, Arm.CONTROL}),
        ({"arms__control__environment": {"A": "1"}}, {Arm.CONTROL}),
        ({"arms__control__fault": "stale-tail"}, {Arm.CONTROL}),
        ({"serving__arguments": {"seed": 1}}, set(Arm)),
        ({"description": "Another text."}, set()),
    ],
)
def test_only_what_changed_is_served_again(project, changes, arms):
    before = plan(project)
    project.change(**changes)
    assert changed_arms(before, plan(project)) == arms


def test_other_code_of_the_harness_serves_every_arm_again(project, monkeypatch):
    before = plan(project)
    monkeypatch.setattr("qualify.planning.harness_sha256", lambda: "other")
    assert changed_arms(before, plan(project)) == set(Arm)


def test_policy_is_in_the_plan_but_asks_for_no_serving(project):
    before = plan(project)
    file = project.root / "policy.yaml"
    file.write_text(file.read_text().replace("minimum_rows: 8", "minimum_rows: 7"))
    after = plan(project)
    assert after.plan_id != before.plan_id
    assert changed_arms(before, after) == set()


def test_subject_follows_candidate_and_model(project):
    first = plan(project).subject
    project.change(arms__control__environment={"A": "1"})
    assert plan(project).subject == first
    project.change(arms__candidate__environment={"A": "1"})
    second = plan(project).subject
    (project.root / "model/weights").write_bytes(b"other")
    assert len({first, second, plan(project).subject}) == 3


def test_attached_servers_are_unbound(project):
    urls = {Arm.BASELINE: "http://127.0.0.1:1", Arm.CANDIDATE: "http://127.0.0.1:2"}
    attached = plan(project, urls)
    assert attached.subject == UNBOUND
    assert not attached.control_configured
    assert "attach" in dict(attached.scope)["launcher"]


def test_of_attached_servers_only_what_they_say_is_told(project):
    urls = {Arm.BASELINE: "http://127.0.0.1:1", Arm.CANDIDATE: "http://127.0.0.1:2"}
    attached = plan(project, urls)
    assert {dict(attached.scope)[label] for label in ("model", "model kind", "server")} == {"not known"}
    assert attached.model_sha256 == attached.distributions_sha256 == ""
    assert plan(project).model_sha256
    (project.root / "model/weights").write_bytes(b"other")
    assert changed_arms(attached, plan(project, urls)) == {Arm.BASELINE, Arm.CANDIDATE}


def test_plan_without_control(project):
    without = plan(project, with_control=False)
    assert [arm.arm for arm in without.arms] == [Arm.BASELINE, Arm.CANDIDATE]
    assert changed_arms(plan(project), without) == set()


def test_a_question_that_cannot_be_asked_is_refused_with_its_place(project):
    (project.root / "scenario.yaml").write_text(
        """\
format: qualify/scenario/1
name: mixed
description: For tests.
seed: 1
phases:
  - {name: first, context_tokens: [30, 40, 50], decode_tokens: 4}
  - name: judge
    decode_tokens: 8
    requests:
      - {context_tokens: [40, 50], ask: echo}
      - {context_tokens: [40, 20], ask: echo}
      - {context_tokens: 900, ask: needle}
      - {tail_tokens: 20, prefix: {name: document, tokens: 64}, ask: echo}
"""
    )
    with pytest.raises(UsageError) as caught:
        plan(project)
    lines = str(caught.value).splitlines()
    assert [line.split("scenario.yaml:")[1] for line in lines if "scenario.yaml" in line] == [
        "11:9: judge/3 asks an echo in 20 tokens; it needs 32. Give its request more context_tokens.",
        "12:9: judge/4 asks a needle, which is text, and the model has no tokenizer.json. "
        "Ask an echo, which is made of token ids, or add the tokenizer to the checkpoint.",
        "13:9: judge/5 asks an echo in 20 tokens; it needs 32. Give its request more context_tokens.",
    ]


def test_synthetic_model_needs_the_kernels(project):
    project.change(model={"kind": "synthetic", "seed": 1})
    with pytest.raises(UsageError, match="ds4-kernels is not installed"):
        plan(project)


def test_scope_tells_the_whole_truth(project):
    scope = dict(plan(project).scope)
    assert scope["device"] == "CPU"
    assert scope["replay"] == "emulated replay"
    assert scope["scenarios"] == "mixed"
    assert scope["launcher"] == "process"
    assert scope["model kind"] == "local"


def test_interpreter_may_be_a_relative_link(project):
    link = project.root / "env/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    project.change(serving__python="env/bin/python")
    assert plan(project).arms[0].argv[:3] == ("PYTHON", "-m", "tests.fake_server")
    shutil.rmtree(Path(project.root / "env"))


@pytest.fixture
def with_kernels(project) -> Project:
    """The same served by an interpreter in which the kernels are installed."""
    site = project.root / "site"
    (site / "ds4_kernels-1.dist-info").mkdir(parents=True)
    (site / "ds4_kernels-1.dist-info/METADATA").write_text("Name: ds4-kernels\nVersion: 1\n")
    (site / "ds4_kernels").symlink_to(ROOT / "kernels/ds4_kernels")
    python = project.root / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] && shift\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    project.change(serving__python=str(python))
    return project


def test_known_fault_is_planned(with_kernels):
    assert plan(with_kernels).arms[-1].fault == "packed-stride"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("packed-strid", "fault 'packed-strid' is unknown; known with replay emulated: abort-under-load, "),
        ("wrong-dcp-owner", "fault 'wrong-dcp-owner' cannot be put in with replay emulated"),
    ],
)
def test_fault_that_the_control_would_refuse_is_refused_with_its_line(with_kernels, fault, said):
    with_kernels.change(arms__control__fault=fault)
    lines = with_kernels.release.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if f"fault: {fault}" in text)
    with pytest.raises(UsageError) as refused:
        plan(with_kernels)
    assert f"release.yaml:{line}:5: {said}" in str(refused.value)
    with_kernels.change(arms__control=None)
    assert [arm.fault for arm in plan(with_kernels).arms] == [None, None]
