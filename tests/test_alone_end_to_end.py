"""Requests sent alone, from the scenario's file to the verdict, on the fake server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from qualify.errors import ExitCode
from tests.projects import Project, assert_judged_again_the_same, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path)
    path = tmp_path / "scenario.yaml"
    scenario = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**scenario, "decode": ["free", "forced", "alone"]}))
    return made


def test_rows_that_are_wrong_in_both_arms_are_found_alone(project: Project) -> None:
    for arm in ("baseline", "candidate"):
        project.misbehave(arm, "wrong-row")
    outcome = project.run()
    assert outcome.code == ExitCode.REJECTED, outcome.err
    findings = project.read("verdict.json")["findings"]
    assert {item["rule"] for item in findings if item["weight"] == "defect"} == {"one-at-a-time"}
    assert_judged_again_the_same(project)


def test_a_right_server_qualifies_and_says_what_was_sent_alone(project: Project) -> None:
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err
    assert "answers 4 requests alone as among others" in outcome.out
    assert (project.bundle() / "arms/baseline/alone.run1.jsonl.gz").exists()
    assert project.read("plan.json")["bos_token_id"] == 0
    assert not (project.bundle() / "arms/control/alone.run1.jsonl.gz").exists()
    junit = (project.bundle() / "junit.xml").read_text()
    assert 'errors="0"' in junit
    assert "<error" not in junit
