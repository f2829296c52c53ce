"""The whole way of a run, from the release file to the exit code, against the fake server over real HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from qualify.errors import ExitCode

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass
class Project:
    """A release on the fake server, in a directory of its own."""

    root: Path

    @property
    def release(self) -> Path:
        return self.root / "release.yaml"

    def change(self, **changes) -> None:
        data = yaml.safe_load(self.release.read_text())
        for path, value in changes.items():
            *parents, last = path.split("__")
            node = data
            for key in parents:
                node = node.setdefault(key, {})
            node[last] = value
        self.release.write_text(yaml.safe_dump(data))

    def misbehave(self, arm: str, how: str, **more: str) -> None:
        self.change(**{f"arms__{arm}__environment": {"FAKE_MISBEHAVE": how, **more}})

    def start(self, *options: str) -> subprocess.Popen:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "qualify",
                "run",
                str(self.release),
                "--bundles",
                str(self.root / "bundles"),
                "--models",
                str(self.root / "models"),
                *options,
            ],
            env=ENVIRONMENT,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str) -> "Outcome":
        process = self.start(*options)
        out, err = process.communicate(timeout=120)
        assert not self.left_over()
        return Outcome(process.returncode, out, err)

    def bundles(self) -> list[Path]:
        return sorted((self.root / "bundles").glob("*"))

    def bundle(self) -> Path:
        return self.bundles()[-1]

    def read(self, name: str):
        return json.loads((self.bundle() / name).read_bytes())

    def left_over(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "tests.fake_server" in words and any(str(self.root) in word for word in words):
                found.append(process)
        return found


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(
        json.dumps({"vocab_size": 512, "bos_token_id": 0, "eos_token_id": 1})
    )
    phase = {
        "context_tokens": [200, 30, 500, 80, 310, 60, 150, 90],
        "decode_tokens": 12,
        "arrival": {"kind": "held"},
    }
    scenario = {
        "format": "qualify/scenario/1",
        "name": "mixed",
        "description": "For tests.",
        "seed": 3,
        "deadline_s": 20.0,
        "stream": False,
        "phases": [{"name": "pollute", "judged": False, **phase}, {"name": "judge", **phase}],
    }
    policy = {
        "format": "qualify/policy/1",
        "name": "test",
        "coverage": {"minimum_rows": 8, "replay_share": 0.9, "judged_positions": 50},
    }
    release = {
        "format": "qualify/release/1",
        "name": "fake",
        "description": "For tests.",
        "replay": "emulated",
        "model": {"kind": "local", "path": "model"},
        "serving": {
            "python": sys.executable,
            "module": "tests.fake_server",
            "served_name": "fake",
            "max_model_len": 32768,
            "max_num_seqs": 16,
            "ready_within_s": 20.0,
            "stop_within_s": 5.0,
            "environment": {"PYTHONPATH": str(ROOT), "FAKE_NOISE": "0.002"},
        },
        "arms": {
            "baseline": {},
            "candidate": {},
            "control": {"fault": "packed-stride", "caught_in": ["mixed"]},
        },
        "scenarios": ["scenario.yaml"],
        "policy": "policy.yaml",
    }
    for name, data in (("scenario", scenario), ("policy", policy), ("release", release)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(data))
    return Project(tmp_path)


def judge(bundle: Path) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "qualify", "judge", str(bundle)],
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def assert_judged_again_the_same(project: Project) -> None:
    again = judge(project.bundle())
    assert again.out.encode() == (project.bundle() / "verdict.json").read_bytes()
    assert (
        again.code
        == {"qualified": 0, "rejected": 1, "inconclusive": 3}[project.read("verdict.json")["result"]]
    )


def test_good_release_is_qualified(project):
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    for said in ("verdict: qualified", "emulated replay", "control", "limitations", str(project.bundle())):
        assert said in outcome.out
    names = {path.name for path in project.bundle().iterdir()}
    assert names == {
        "arms",
        "inputs",
        "junit.xml",
        "manifest.json",
        "plan.json",
        "receipt.json",
        "run.json",
        "summary.txt",
        "verdict.json",
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
    scenario.write_text(scenario.read_text().replace("deadline_s: 20.0", "deadline_s: 4.0"))
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


def wait_for(project: Project, arm: str, process: subprocess.Popen) -> psutil.Process:
    """The arm's server, once its first requests have been answered."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for bundle in project.bundles():
            answered = list((bundle / f"arms/{arm}").glob("*.run*.jsonl"))
            if any(path.stat().st_size for path in answered):
                return next(
                    server for server in project.left_over() if f"arms/{arm}" in str(server.environ())
                )
        time.sleep(0.05)
    raise AssertionError("no server in time")


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


def test_nothing_changed_serves_nothing(project):
    project.run()
    began = time.monotonic()
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED
    assert time.monotonic() - began < 5
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


def test_damaged_bundle_is_no_evidence(project):
    project.run()
    path = project.bundle() / "arms/candidate/server.log"
    path.write_bytes(path.read_bytes() + b"x")
    outcome = judge(project.bundle())
    assert outcome.code == ExitCode.INCONCLUSIVE
    assert "was changed after the bundle was sealed" in outcome.err
    assert outcome.out == ""


def test_port_taken(project):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = project.run("--port", str(taken.getsockname()[1]))
    assert outcome.code == ExitCode.USAGE
    assert str(taken) not in outcome.err
    assert "port" in outcome.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__path": "nowhere"}, "no model there"),
        ({"serving__python": "nowhere/python"}, "interpreter does not exist"),
        ({"scenarios": ["none.yaml"]}, "cannot be read"),
    ],
)
def test_wrong_usage(project, changes, said):
    project.change(**changes)
    outcome = project.run()
    assert outcome.code == ExitCode.USAGE
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert project.bundles() == []


def attach(project: Project, arm: str, environment: dict[str, str]) -> tuple[subprocess.Popen, str]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fake_server",
            "--model",
            str(project.root / "model"),
            "--served-model-name",
            "fake",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return process, f"{arm}=http://127.0.0.1:{port}"


@pytest.mark.parametrize(("how", "code"), [("", ExitCode.INCONCLUSIVE), ("wrong-row", ExitCode.REJECTED)])
def test_attached_servers(project, how, code):
    baseline, first = attach(project, "baseline", {"FAKE_NOISE": "0.002"})
    candidate, second = attach(project, "candidate", {"FAKE_NOISE": "0.002", "FAKE_MISBEHAVE": how})
    try:
        process = project.start("--attach", first, "--attach", second)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        assert "unbound" in out
        assert baseline.poll() is None
        assert candidate.poll() is None
    finally:
        for server in (baseline, candidate):
            server.kill()
            server.wait()
    assert_judged_again_the_same(project)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attach", "baseline=http://127.0.0.1:1"], "needs at least"),
        (
            ["--attach", "baseline=http://example.org:80", "--attach", "candidate=http://127.0.0.1:1"],
            "this machine",
        ),
        (["--attach", "both=http://127.0.0.1:1"], "ARM=URL"),
        (["--colour"], "No such option"),
    ],
)
def test_wrong_options(project, options, said):
    outcome = project.run(*options)
    assert outcome.code == ExitCode.USAGE
    assert said in outcome.err
