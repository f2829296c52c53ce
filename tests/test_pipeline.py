"""The whole way of a run, from the release file to the exit code, over real HTTP."""

import yaml

from qualify.errors import ExitCode
from qualify.reporting.writers import WRITERS
from tests.projects import assert_judged_again_the_same


def test_good_release_is_qualified(project):
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    for said in ("verdict: qualified", "emulated replay", "control", "limitations", str(project.bundle())):
        assert said in outcome.out
    names = {path.name for path in project.bundle().iterdir()}
    assert names == {
        "arms",
        "inputs",
        "manifest.json",
        "plan.json",
        "run.json",
        "verdict.json",
        *WRITERS,
    }
    assert project.read("receipt.json")["verdict"] == "qualified"
    assert_judged_again_the_same(project)


def test_defect_in_the_candidate_is_rejected_and_its_rows_are_named(project):
    project.misbehave("candidate", "wrong-row")
    outcome = project.run()
    assert outcome.code == ExitCode.REJECTED, outcome.err + outcome.out
    rows = {
        row
        for finding in project.read("verdict.json")["findings"]
        if finding["weight"] == "defect"
        for row in finding["rows"]
    }
    assert rows == set(range(1, 8))
    assert_judged_again_the_same(project)


def test_without_control_nothing_is_qualified(project):
    outcome = project.run("--no-control")
    assert outcome.code == ExitCode.INCONCLUSIVE, outcome.out
    assert "control" in outcome.out
    assert_judged_again_the_same(project)


def test_control_must_be_caught_where_its_fault_can_act(project):
    # Row 0 is always right, so one request alone cannot show the fault: the release claims too much.
    alone = yaml.safe_load((project.root / "scenario.yaml").read_text())
    alone |= {"name": "alone", "phases": [{"name": "judge", "context_tokens": [200], "decode_tokens": 12}]}
    (project.root / "alone.yaml").write_text(yaml.safe_dump(alone))
    project.change(scenarios=["scenario.yaml", "alone.yaml"])
    assert project.run().code == ExitCode.QUALIFIED
    project.change(arms__control__caught_in=["mixed", "alone"])
    outcome = project.run()
    assert outcome.code == ExitCode.INCONCLUSIVE, outcome.out
    assert "not caught in scenario alone" in outcome.out
    assert_judged_again_the_same(project)


def test_free_decoding_alone_has_its_floor_in_free_runs(project):
    scenario = project.root / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(yaml.safe_load(scenario.read_text()) | {"decode": ["free"]}))
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.out
    assert project.read("verdict.json")["comparison"]["arms"][0]["decode"] == "free"
    project.misbehave("candidate", "wrong-row")
    assert project.run().code == ExitCode.REJECTED


def test_nothing_changed_serves_nothing(project):
    project.run()
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED
    assert "nothing has changed" in outcome.err
    assert "starting" not in outcome.err
    assert len(project.bundles()) == 1


def test_changed_policy_judges_again_and_serves_nothing(project):
    project.run()
    policy = project.root / "policy.yaml"
    policy.write_text(policy.read_text().replace("minimum_rows: 8", "minimum_rows: 9"))
    outcome = project.run()
    assert outcome.code == ExitCode.INCONCLUSIVE, outcome.out
    assert "starting" not in outcome.err
    assert len(project.bundles()) == 2


def test_fresh_serves_again(project):
    project.run()
    assert "baseline: starting" in project.run("--fresh").err


def test_changed_scenario_serves_again(project):
    project.run()
    scenario = project.root / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("seed: 3", "seed: 4"))
    assert "baseline: starting" in project.run().err
