"""Releases whose arms' servers run side by side: the same verdict, and no finding that the others caused."""

import signal

import pytest

from qualify.errors import ExitCode
from tests.projects import Project, assert_judged_again_the_same, wait_for


@pytest.fixture
def quiet(project) -> Project:
    """A release without noise, so that two runs of it answer the same."""
    project.change(serving__environment__FAKE_NOISE="0")
    return project


def judged(project: Project) -> dict:
    """What the verdict says, beside the scope and what clocks and meters of a single run say."""
    verdict = project.read("verdict.json")
    same = {name: verdict[name] for name in ("result", "findings", "comparison", "limitations")}
    exact = [cell for cell in verdict["coverage"] if cell["how"] in ("step log", "transcripts")]
    assert len(exact) >= 5
    return same | {"coverage": exact}


@pytest.mark.parametrize(
    ("how", "code"),
    [("", ExitCode.QUALIFIED), pytest.param("wrong-row", ExitCode.REJECTED, marks=pytest.mark.slow)],
)
def test_same_verdict_as_one_after_another(quiet, how, code):
    quiet.misbehave("candidate", how)
    assert quiet.run().code == code
    alone = judged(quiet)
    quiet.change(serving__parallel_arms=True)
    outcome = quiet.run()
    assert outcome.code == code, outcome.err + outcome.out
    assert judged(quiet) == alone
    assert "starting side by side: baseline, candidate, control" in outcome.err
    assert "unchanged, taken from" not in outcome.err
    assert ["arms", "servers side by side, driven one after another"] in quiet.read("verdict.json")["scope"]
    assert quiet.read("plan.json")["parallel_arms"] is True
    assert quiet.read("arms/baseline/configuration.json")["vllm_config"]["scheduler_config"] == {
        "max_num_seqs": 16
    }
    assert_judged_again_the_same(quiet)


def test_candidate_that_the_others_leave_no_memory_is_served_alone(quiet):
    (quiet.root / "card").mkdir()
    quiet.change(serving__parallel_arms=True, serving__environment__FAKE_CARD=str(quiet.root / "card"))
    quiet.misbehave("candidate", "crowded-out", FAKE_LOAD_S="1")
    outcome = quiet.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    assert "starts again alone" in outcome.err
    assert quiet.read("arms/candidate/arm.json")["beside"].startswith("start-failed: ")
    assert quiet.read("arms/control/arm.json")["beside"] == ""
    assert "CUDA out of memory" in (quiet.bundle() / "arms/candidate/server-beside.log").read_text()
    (note,) = [item for item in quiet.read("verdict.json")["findings"] if item["weight"] == "note"]
    assert "does not count: start-failed" in note["summary"]
    assert_judged_again_the_same(quiet)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "code"), [("candidate", ExitCode.REJECTED), ("baseline", ExitCode.MACHINERY)]
)
def test_failure_that_repeats_alone_counts_as_ever(quiet, arm, code):
    quiet.change(serving__parallel_arms=True)
    quiet.misbehave(arm, "die-while-loading")
    outcome = quiet.run()
    assert outcome.code == code, outcome.err + outcome.out
    assert "starts again alone" in outcome.err
    entry = quiet.read(f"arms/{arm}/arm.json")
    assert entry["state"] == "start-failed"
    assert "no kernel for this shape" in entry["beside"]
    assert not (quiet.bundle() / "arms/control").exists()
    assert_judged_again_the_same(quiet)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_side_by_side_then_resumed(quiet, number):
    quiet.change(serving__parallel_arms=True, arms__candidate__environment={"FAKE_STEP_S": "0.1"})
    process = quiet.start()
    wait_for(quiet, "candidate", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, out + err
    assert "Traceback" not in err
    assert not quiet.left_over()
    assert quiet.read("arms/baseline/arm.json")["state"] == "served"
    assert quiet.read("arms/candidate/arm.json")["state"] == "interrupted"
    assert not (quiet.bundle() / "arms/control/arm.json").exists()
    assert_judged_again_the_same(quiet)

    outcome = quiet.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    assert "baseline: unchanged, taken from" in outcome.err
    assert "starting side by side: candidate, control" in outcome.err


def test_shares_of_a_card_that_add_up_to_more_than_it_are_refused(project):
    project.change(replay="full-graph", serving__parallel_arms=True)
    outcome = project.run()
    assert outcome.code == ExitCode.USAGE
    assert "276% of a card's memory" in outcome.err
    assert "release.yaml:" in outcome.err


def test_machine_without_room_for_all_is_refused_before_a_start(project):
    project.change(serving__parallel_arms=True, serving__environment__VLLM_CPU_KVCACHE_SPACE="100000")
    outcome = project.run()
    assert outcome.code == ExitCode.MACHINERY, outcome.err
    assert "3 servers side by side ask for 300000.0 GiB of memory" in outcome.err
    assert not list((project.bundle() / "arms").rglob("server.log"))
