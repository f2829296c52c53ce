"""The profile of a run: named by the release, overridden by the user, and told in the plan."""

import json
import subprocess
import sys

import pytest

from qualify.errors import UsageError
from qualify.inputs import read_inputs
from tests.projects import ENVIRONMENT, Project, make_project

PROFILES = """\
format: qualify/scenario/1
name: mixed
description: For tests.
seed: 3
profiles:
  smoke: {contexts: [200, 30]}
  gate: {contexts: [2000, 300]}
phases: [{name: judge, context_tokens: $contexts, decode_tokens: 12, repeat: 8}]
"""


@pytest.fixture
def project(tmp_path) -> Project:
    project = make_project(tmp_path)
    (tmp_path / "scenario.yaml").write_text(PROFILES)
    return project


def plan(project: Project, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "qualify", "plan", str(project.release), *options],
        env=ENVIRONMENT,
        cwd=project.root,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_none_chosen_is_wrong_usage(project):
    done = plan(project)
    assert done.returncode == 2
    assert "scenario.yaml:5:1: a profile must be chosen: smoke, gate" in done.stderr


def test_the_command_line_wins_over_the_release(project):
    project.change(profile="gate")
    longest = {}
    for options, profile in (((), "gate"), (("--profile", "smoke"), "smoke")):
        done = plan(project, *options)
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)["plan"]
        assert ["profile", profile] in made["scope"]
        longest[profile] = max(item["context_tokens"] for item in made["scenarios"][0]["requests"])
    assert longest == {"gate": 2000, "smoke": 200}


def test_an_unknown_one_is_wrong_usage(project):
    done = plan(project, "--profile", "huge")
    assert done.returncode == 2
    assert "smoke" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"serving__max_num_seqs": 2},
            ":9:12: 3 rows in one step are required, more than the release's max_num",
        ),
        ({"serving__arguments": {"enable-prefix-caching": False}}, "enable-prefix-caching: false"),
        ({"arms__candidate__arguments": {"no-enable-prefix-caching": True}}, "enable-prefix-caching: false"),
        (
            {"serving__arguments": {"speculative-config": "{}"}},
            "the candidate has a speculative-config: decode [free]",
        ),
        (
            {"arms__candidate__arguments": {"speculative-config": "{}"}},
            "speculation: false is required, and the candi",
        ),
    ],
)
def test_what_the_server_cannot_do_is_refused_before_anything_starts(project, change, said):
    text = PROFILES.replace("[200, 30]", "[200, 30, 40]").replace("[2000, 300]", "[2000, 300, 40]")
    text += "requires: {rows: [3], prefix_hits: true, speculation: false}\n"
    text = text.replace(
        "phases: [",
        "phases: [{name: fill, judged: false, decode_tokens: 2, requests: [{count: 2, context_tokens: 64, "
        "prompt: a}]}, ",
    )
    (project.root / "scenario.yaml").write_text(text)
    project.change(profile="smoke")
    read_inputs(project.release)
    project.change(**change)
    with pytest.raises(UsageError) as caught:
        read_inputs(project.release)
    assert said in str(caught.value)
    assert "scenario.yaml:9:" in str(caught.value) or "scenario.yaml:1:" in str(caught.value)
