"""Servers that fail, are killed or are interrupted: each has its exit code, and nothing is left behind."""

import signal
import time

import pytest

from qualify.errors import ExitCode
from tests.projects import assert_judged_again_the_same, judge, wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("die-under-load", ExitCode.REJECTED, "SIGABRT"),
        ("engine-aborts", ExitCode.REJECTED, "Fatal Python error"),
        ("engine-dies", ExitCode.INCONCLUSIVE, "vanished"),
        ("exit-under-load", ExitCode.INCONCLUSIVE, "exited with code 0"),
        ("die-while-loading", ExitCode.REJECTED, "no kernel for this shape"),
        ("abort-while-loading", ExitCode.REJECTED, "SIGABRT"),
        ("out-of-memory", ExitCode.MACHINERY, "out of memory"),
        ("http-500", ExitCode.REJECTED, "500"),
        ("truncated-json", ExitCode.REJECTED, ""),
        ("no-logprobs", ExitCode.REJECTED, "logprobs"),
        ("nan-logprobs", ExitCode.REJECTED, "NaN"),
        ("early-stop", ExitCode.REJECTED, ""),
    ],
)
def test_trouble_in_the_candidate(project, how, code, said):
    project.misbehave("candidate", how)
    outcome = project.run()
    assert outcome.code == code, outcome.err + outcome.out
    assert said in outcome.out + outcome.err
    assert "Traceback" not in outcome.err
    assert_judged_again_the_same(project)


def test_candidate_that_is_never_ready(project):
    project.misbehave("candidate", "never-ready")
    project.change(serving__ready_within_s=6.0)
    outcome = project.run()
    assert outcome.code == ExitCode.INCONCLUSIVE, outcome.err + outcome.out
    assert "not ready after" in outcome.out
    assert_judged_again_the_same(project)


def test_candidate_that_hangs(project):
    project.misbehave("candidate", "hang")
    scenario = project.root / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("deadline_s: 60.0", "deadline_s: 4.0"))
    outcome = project.run()
    assert outcome.code == ExitCode.REJECTED, outcome.err + outcome.out
    assert_judged_again_the_same(project)


@pytest.mark.parametrize("how", ["die-while-loading", "die-under-load"])
def test_baseline_that_fails_is_the_machinerys_trouble(project, how):
    project.misbehave("baseline", how)
    outcome = project.run()
    assert outcome.code == ExitCode.MACHINERY, outcome.out
    assert "incomplete" in outcome.out
    assert project.read("run.json")["status"] == "incomplete"
    assert_judged_again_the_same(project)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_candidate_killed_from_outside_then_resumed(project, number):
    project.change(arms__candidate__environment={"FAKE_STEP_S": "0.2"})
    process = project.start()
    wait_for(project, "candidate", process).send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INCONCLUSIVE, out + err
    assert "incomplete" in out
    killed = project.bundle()
    assert project.read("arms/candidate/arm.json")["state"] == "killed"
    assert not project.left_over()
    assert_judged_again_the_same(project)

    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    assert "baseline: unchanged, taken from" in outcome.err
    assert "candidate: starting" in outcome.err
    assert project.bundle() != killed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(project, number):
    project.change(arms__baseline__environment={"FAKE_STEP_S": "0.2"})
    process = project.start()
    wait_for(project, "baseline", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, out + err
    assert "Traceback" not in err
    assert "incomplete" in out
    assert not project.left_over()
    assert_judged_again_the_same(project)


def test_harness_killed(project):
    project.change(arms__baseline__environment={"FAKE_STEP_S": "0.2"})
    process = project.start()
    wait_for(project, "baseline", process)
    process.kill()
    process.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while project.left_over() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not project.left_over()
    assert project.read("run.json")["status"] == "incomplete"
    assert judge(project.bundle()).code == ExitCode.INCONCLUSIVE


def test_damaged_bundle_is_no_evidence(project):
    project.run()
    path = project.bundle() / "arms/candidate/server.log"
    path.write_bytes(path.read_bytes() + b"x")
    outcome = judge(project.bundle())
    assert outcome.code == ExitCode.INCONCLUSIVE
    assert "was changed after the bundle was sealed" in outcome.err
    assert outcome.out == ""
