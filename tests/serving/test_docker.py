"""The container of an arm, on a stand-in for the engine; on a real one: tests/images/test_real_engine.py."""

import asyncio
import threading
from pathlib import Path

import pytest

from qualify.errors import MachineryError
from qualify.images.containers import HARNESS_LABEL
from qualify.record import ArmState
from qualify.release import Container
from qualify.serving import docker
from qualify.serving.arms import ServerCommand
from qualify.serving.docker import DockerLauncher, DockerServer, Serving, exit_of
from qualify.serving.endings import classify
from tests.images.engine import FakeEngine, api_error
from tests.images.factory import IDENTITY


def launcher(engine: FakeEngine, directory: Path) -> DockerLauncher:
    serving = Serving(
        image=IDENTITY.reference,
        arm="candidate",
        model=directory / "model",
        directory=directory / "arms/candidate",
        limits=Container(memory_gib=2, pids=99, shm_mib=300),
    )
    return DockerLauncher(
        serving,
        lambda port: ServerCommand(("/opt/python", "-m", "m", f"--port={port}"), (("A", "1"),), Path("/")),
        stop_within_s=1,
        client=lambda: engine,
    )


async def started(engine: FakeEngine, directory: Path) -> DockerServer:
    return launcher(engine, directory).start()


async def test_arm_runs_by_digest_with_its_limits(tmp_path):
    engine = FakeEngine()
    server = await started(engine, tmp_path)
    (container,) = engine.containers.made
    assert container.image == IDENTITY.reference
    assert "@sha256:" in container.image
    made = container.options
    assert made["network_mode"] == "host"
    assert (made["mem_limit"], made["pids_limit"], made["shm_size"]) == (2 * 2**30, 99, 300 * 2**20)
    assert [(mount["Target"], mount["ReadOnly"]) for mount in made["mounts"]] == [
        ("/model", True),
        ("/qualify/steps.jsonl", False),
    ]
    assert made["environment"]["A"] == "1"
    assert made["environment"]["HOME"] == "/tmp"
    assert server.ended() is None
    await server.stop()
    assert not engine.containers.made
    await server.stop()


async def test_log_is_in_the_bundle(tmp_path):
    engine = FakeEngine()
    engine.containers.changes = {"output": (b"one\ntwo\n", b"")}
    server = await started(engine, tmp_path)
    await server.stop()
    assert server.last_line() == "two"
    assert (tmp_path / "arms/candidate/server.log").read_bytes() == b"one\ntwo\n"


async def test_container_that_somebody_removed_was_killed(tmp_path):
    engine = FakeEngine()
    server = await started(engine, tmp_path)
    engine.containers.made.clear()
    while (seen := server.ended()) is None:
        await asyncio.sleep(0.01)
    assert classify(seen, (), ready=True).state is ArmState.KILLED
    await server.stop()


async def test_engine_that_answers_late_holds_nobody_up(tmp_path):
    asked, answers = threading.Event(), threading.Event()
    answered = []

    def late() -> None:
        asked.set()
        answered.append(answers.wait(5))

    engine = FakeEngine()
    engine.containers.changes = {"before_reload": late}
    server = await started(engine, tmp_path)
    assert await asyncio.to_thread(asked.wait, 5)
    assert server.ended() is None
    assert not answered
    engine.containers.made[0].state = {"Status": "exited", "ExitCode": 139, "OOMKilled": False}
    answers.set()
    while (seen := server.ended()) is None:
        await asyncio.sleep(0.01)
    assert seen.returncode == -11
    await server.stop()


@pytest.mark.parametrize("breaks", [[0], [2], [1, 2, 0]])
async def test_log_that_broke_off_is_read_on(tmp_path, monkeypatch, breaks):
    monkeypatch.setattr(docker, "_AGAIN_AFTER_S", 0.01)
    engine = FakeEngine()
    engine.containers.changes = {"output": (b"one\ntwo\nthree\n", b""), "log_breaks": breaks}
    server = await started(engine, tmp_path)
    log = tmp_path / "arms/candidate/server.log"
    while breaks or b"three" not in log.read_bytes():
        await asyncio.sleep(0.01)
    await server.stop()
    assert log.read_bytes() == b"one\ntwo\nthree\n"


async def test_log_of_which_the_rest_is_lost_says_so(tmp_path):
    engine = FakeEngine()
    engine.containers.changes = {"output": (b"one\ntwo\n", b""), "log_breaks": [1] * 9}
    server = await started(engine, tmp_path)
    await server.stop()
    assert server.log_tail() == ("one", "qualify: the engine did not send the rest of this log")


def test_failed_start_leaves_nothing(tmp_path):
    engine = FakeEngine()
    engine.containers.changes = {"start_error": api_error(500, "driver failed")}
    with pytest.raises(MachineryError, match="driver failed"):
        launcher(engine, tmp_path).start()
    assert not engine.containers.made


async def test_what_a_dead_harness_left_is_swept_first(tmp_path):
    engine = FakeEngine()
    launcher(engine, tmp_path).start()
    engine.containers.made[0].labels[HARNESS_LABEL] = "4194303:1.00"
    launcher(engine, tmp_path).start()
    assert len(engine.containers.made) == 1


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ({"Status": "exited", "ExitCode": 139, "OOMKilled": False}, ArmState.DIED),
        ({"Status": "exited", "ExitCode": 1, "OOMKilled": False}, ArmState.DIED),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": False}, ArmState.KILLED),
        ({"Status": "exited", "ExitCode": 0, "OOMKilled": False}, ArmState.KILLED),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, ArmState.MACHINERY),
    ],
)
def test_ends_are_told_apart(state, ended):
    seen = exit_of(state, None)
    assert seen is not None
    assert classify(seen, (), ready=True).state is ended


@pytest.mark.parametrize("status", ["created", "running", "paused"])
def test_container_that_runs_has_not_ended(status):
    assert exit_of({"Status": status, "ExitCode": 0}, None) is None
