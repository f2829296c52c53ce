"""Real Ctrl-C and SIGTERM at the moments at which something could be lost: 130, and what is whole stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qualify.errors import ExitCode
from qualify.evidence.bundle import Bundle, verify
from qualify.serving import guard
from tests.projects import ENVIRONMENT, ROOT, Project, assert_judged_again_the_same

STOPS_SLOWLY = """
import asyncio, sys
from pathlib import Path
from qualify.interrupts import run_interruptible
from qualify.serving.session import serve_async
from tests.fake_server.starting import fake_launcher
from tests.serving.test_session import SESSION

async def use(server):
    print(server.pid, flush=True)
    try:
        await asyncio.sleep(float(sys.argv[2]))
        print("done", flush=True)
    except asyncio.CancelledError:
        await asyncio.sleep(0.6)  # writes down what it has
        print("kept", flush=True)
        raise

launcher = fake_launcher(Path(sys.argv[1]), "ignore-sigterm", stop_within_s=1.5)
ran = run_interruptible(serve_async(SESSION, launcher, use, progress=lambda _: None))
print(ran.outcome.state, ran.interrupted, flush=True)
"""

BESIDE = """
import asyncio, dataclasses, os, signal, sys
from pathlib import Path
from qualify.serving.together import serve_together
from tests.fake_server.starting import fake_launcher
from tests.serving.test_together import ARMS, Seen, servers

seen, directory = Seen(), Path(sys.argv[1])

def slow(arm):
    launcher = fake_launcher(directory / arm.session.arm, "ignore-sigterm", stop_within_s=1.0)
    return dataclasses.replace(arm, launcher=launcher, use=lambda _: asyncio.sleep(60))

arms = [slow(arm) for arm in servers(directory, seen)]

async def use(server):
    print(server.pid, flush=True)
    if sys.argv[2] == "dies":
        os.kill(server.pid, signal.SIGABRT)
        await asyncio.sleep(60)
    await asyncio.sleep(float(sys.argv[2]))
    print("done", flush=True)

arms[0] = dataclasses.replace(arms[0], use=use)
ran = serve_together(arms, lambda record: print(record.state, flush=True))
print(*[record.state for record in ran.outcome.records], ran.interrupted, flush=True)
"""

SIGNALLED = """
import os, signal, sys
import qualify.pipeline as pipeline
from qualify.__main__ import main

_, stage, name, *words = sys.argv
real = getattr(pipeline, stage)

def signalled(*given):
    os.kill(os.getpid(), getattr(signal, name))
    return real(*given)

setattr(pipeline, stage, signalled)
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs in the background ignore it
sys.argv = ["qualify", *words]
main()
"""

ESCAPES = """
import asyncio, os, signal, sys
import qualify.cli.main
from qualify.__main__ import main

def escapes():
    raise {raised}

qualify.cli.main.run_command_line = escapes
main()
"""


def script(text: str, *words: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, words)],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("text", [STOPS_SLOWLY, BESIDE], ids=["alone", "beside"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_while_a_server_is_stopped_lose_no_record(tmp_path: Path, text: str, number: int) -> None:
    harness = script(text, tmp_path, 0.2)
    assert harness.stdout is not None
    server = int(harness.stdout.readline())
    assert harness.stdout.readline() == "done\n"
    for _ in range(3):
        time.sleep(0.3)  # within the second that the server takes to end
        harness.send_signal(number)
    out, err = harness.communicate(timeout=30)
    states = out.split()
    assert states == (
        ["served", "True"] if text is STOPS_SLOWLY else [*2 * ["served", "interrupted"], "True"]
    ), err
    assert harness.returncode == 0
    assert guard.session_members(server) == []


@pytest.mark.parametrize("text", [STOPS_SLOWLY, BESIDE], ids=["alone", "beside"])
def test_impatient_signals_while_driving_are_one(tmp_path: Path, text: str) -> None:
    harness = script(text, tmp_path, 60)
    assert harness.stdout is not None
    server = int(harness.stdout.readline())
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        harness.send_signal(number)
        time.sleep(0.25)
    out, err = harness.communicate(timeout=30)
    assert out.split() == [{STOPS_SLOWLY: "kept", BESIDE: "interrupted"}[text], "interrupted", "True"], (
        out + err
    )
    assert harness.returncode == 0
    assert guard.session_members(server) == []


def test_signals_while_the_others_are_stopped_lose_no_record(tmp_path: Path) -> None:
    harness = script(BESIDE, tmp_path, "dies")
    assert harness.stdout is not None
    server = int(harness.stdout.readline())
    assert harness.stdout.readline() == "died\n"
    harness.send_signal(signal.SIGTERM)
    out, err = harness.communicate(timeout=30)
    assert out.split() == ["died", "True"], out + err
    assert guard.session_members(server) == []


def test_arm_that_is_whole_when_its_stop_is_interrupted_stays(project: Project) -> None:
    project.misbehave("baseline", "ignore-sigterm")
    project.change(serving__stop_within_s=2.0)
    process = project.start()
    assert process.stderr is not None
    said = ""
    while "baseline.forced.run2: " not in said:
        said = process.stderr.readline()
        assert said, process.communicate()
    for _ in range(2):
        time.sleep(0.4)
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, out + err
    assert project.read("arms/baseline/arm.json")["state"] == "served"
    assert project.read("run.json")["why"] == "the run was interrupted"
    assert not (project.bundle() / "arms/candidate/arm.json").exists()
    assert not project.left_over()
    assert_judged_again_the_same(project)

    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    assert "baseline: unchanged, taken from" in outcome.err
    assert "candidate: starting" in outcome.err


def test_signals_after_serving_lose_no_arm(project: Project) -> None:
    """While it judges, writes reports and seals, one after another on the same three arms."""
    words = [
        "run",
        project.release,
        "--bundles",
        project.root / "bundles",
        "--models",
        project.root / "models",
    ]
    for stage, number, served in (
        ("read_material", "SIGTERM", 3),
        ("write_reports", "SIGINT", 0),
        ("seal", "SIGTERM", 0),
    ):
        process = script(SIGNALLED, stage, number, *words)
        out, err = process.communicate(timeout=120)
        assert process.returncode == ExitCode.INTERRUPTED, out + err
        assert err.count(": starting") == served, err
        assert "Traceback" not in err
        verify(Bundle(project.bundle()))
        assert project.read("run.json")["status"] == "complete"
        assert not list(project.bundle().rglob("*.partial"))
    outcome = project.run()
    # the last of them had its verdict and all reports by then
    assert "nothing has changed" in outcome.err
    assert outcome.code == ExitCode.QUALIFIED, outcome.err
    assert_judged_again_the_same(project)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("asyncio.CancelledError", ExitCode.INTERRUPTED),
        ("KeyboardInterrupt", ExitCode.INTERRUPTED),
        ("SystemExit(1)", ExitCode.MACHINERY),
        ("RecursionError", ExitCode.MACHINERY),
    ],
)
def test_nothing_that_escapes_reads_as_rejected(raised: str, code: ExitCode) -> None:
    process = script(ESCAPES.format(raised=raised))
    process.communicate(timeout=30)
    assert process.returncode == code
