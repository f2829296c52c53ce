from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qualify.errors import EvidenceError
from qualify.record import ArmRecord, ArmState
from qualify.serving import guard
from qualify.serving.arms import ServerCommand
from qualify.serving.attach import AttachLauncher
from qualify.serving.launcher import Launcher, Server
from qualify.serving.process import ProcessLauncher, ProcessServer, free_port
from qualify.serving.readiness import WaitProgress
from qualify.serving.session import Session, Use, serve_async
from qualify.transcript import Arm
from tests.fake_server.starting import NAME, ROOT, fake_launcher, fake_server

SESSION = Session(arm=Arm.CANDIDATE, fault=None, served_name=NAME, ready_within_s=20)


async def nothing(_: Server) -> None:
    return None


async def for_ever(_: Server) -> None:
    await asyncio.sleep(60)


async def serve(
    launcher: Launcher, use: Use = nothing, session: Session = SESSION, seen: list[WaitProgress] | None = None
) -> ArmRecord:
    return await serve_async(session, launcher, use, progress=(seen if seen is not None else []).append)


def after(seconds: float, number: int, *, worker: bool = False) -> Use:
    """Uses a server by sending it, or its worker, a signal."""

    async def use(server: Server) -> None:
        assert isinstance(server, ProcessServer)
        await asyncio.sleep(seconds)
        others = [pid for pid in guard.session_members(server.pid) if pid != server.pid]
        os.kill(others[0] if worker else server.pid, number)
        await asyncio.sleep(60)

    return use


async def test_served_and_stopped(tmp_path: Path) -> None:
    used: list[Server] = []

    async def use(server: Server) -> None:
        used.append(server)
        await asyncio.sleep(0.6)

    seen: list[WaitProgress] = []
    record = await serve(fake_launcher(tmp_path, FAKE_LOAD_S="0.5"), use, seen=seen)
    assert record.state is ArmState.SERVED
    assert (record.detail, record.log_tail) == ("", ())
    assert record.started_s is not None
    assert 0 < record.started_s < 20
    assert record.peak_rss_bytes is not None
    assert record.peak_rss_bytes > 10_000_000
    assert isinstance(used[0], ProcessServer)
    assert guard.session_members(used[0].pid) == []
    assert any("/health does not answer" in item.waiting_for for item in seen)
    assert any(item.last_line.startswith("loading") for item in seen)
    assert [item.elapsed_s for item in seen] == sorted(item.elapsed_s for item in seen)


@pytest.mark.parametrize(
    ("misbehaviour", "state", "detail"),
    [
        ("die-while-loading", ArmState.START_FAILED, "code 1: RuntimeError: no kernel for this shape"),
        ("abort-while-loading", ArmState.START_FAILED, "SIGABRT: Fatal Python error: Aborted"),
        ("exit-while-loading", ArmState.KILLED, "code 0"),
        ("out-of-memory", ArmState.MACHINERY, "the machine is out of memory"),
    ],
)
async def test_server_that_ends_while_loading(
    tmp_path: Path, misbehaviour: str, state: ArmState, detail: str
) -> None:
    record = await serve(fake_launcher(tmp_path, misbehaviour))
    assert record.state is state
    assert detail in record.detail
    assert record.log_tail
    assert record.started_s is None


async def test_server_that_is_never_ready(tmp_path: Path) -> None:
    session = Session(arm=Arm.CONTROL, fault="packed-stride", served_name=NAME, ready_within_s=2)
    record = await serve(fake_launcher(tmp_path, "never-ready"), session=session)
    assert record.state is ArmState.NEVER_READY
    assert record.detail.startswith("not ready after 2 s: /health answers 503; its last line: ")
    assert any("Uvicorn running" in line for line in record.log_tail)
    assert record.fault == "packed-stride"


async def test_answer_under_another_name_is_not_our_server(tmp_path: Path) -> None:
    record = await serve(fake_launcher(tmp_path, "wrong-name"))
    assert record.state is ArmState.MACHINERY
    assert "it serves another, not fake" in record.detail


async def test_lost_race_for_the_port_is_the_machines_trouble(tmp_path: Path) -> None:
    launcher = fake_launcher(tmp_path)
    command = launcher._command
    with socket.create_server(("127.0.0.1", 0)) as taken:
        launcher._command = lambda _: command(taken.getsockname()[1])
        record = await serve(launcher)
    assert record.state is ArmState.MACHINERY
    assert "its port was taken" in record.detail


async def test_missing_module_is_the_machines_trouble(tmp_path: Path) -> None:
    command = ServerCommand((sys.executable, "-m", "tests.nothing_here"), (), ROOT)
    record = await serve(ProcessLauncher(lambda port: command, log=tmp_path / "log", stop_within_s=1))
    assert record.state is ArmState.MACHINERY
    assert "lacks the module tests.nothing_here" in record.detail


async def test_missing_interpreter_is_the_machines_trouble(tmp_path: Path) -> None:
    command = ServerCommand((str(tmp_path / "python"),), (), ROOT)
    record = await serve(ProcessLauncher(lambda port: command, log=tmp_path / "log", stop_within_s=1))
    assert record.state is ArmState.MACHINERY
    assert "no Python interpreter" in record.detail


@pytest.mark.parametrize(
    ("number", "worker", "state"),
    [
        (signal.SIGKILL, False, ArmState.KILLED),
        (signal.SIGTERM, False, ArmState.KILLED),
        (signal.SIGABRT, False, ArmState.DIED),
        (signal.SIGSEGV, False, ArmState.DIED),
        (signal.SIGKILL, True, ArmState.KILLED),
        (signal.SIGTERM, True, ArmState.KILLED),
        (signal.SIGUSR1, True, ArmState.DIED),  # makes the worker abort by itself
    ],
)
async def test_server_that_ends_in_mid_use(
    tmp_path: Path, number: int, worker: bool, state: ArmState
) -> None:
    started = time.monotonic()
    record = await serve(fake_launcher(tmp_path), after(0.7, number, worker=worker))
    assert record.state is state
    assert record.log_tail
    assert time.monotonic() - started < 30
    if state is ArmState.DIED:
        assert "Fatal Python error" in record.detail


async def test_use_is_told_why_it_is_cancelled(tmp_path: Path) -> None:
    reasons: list[object] = []

    async def use(server: Server) -> None:
        assert isinstance(server, ProcessServer)
        os.kill(server.pid, signal.SIGKILL)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            reasons.extend(error.args)
            raise

    await serve(fake_launcher(tmp_path), use)
    assert "SIGKILL" in str(reasons[0])


async def test_use_that_gives_up_on_a_dying_server_gets_its_ending(tmp_path: Path) -> None:
    async def use(server: Server) -> str:
        assert isinstance(server, ProcessServer)
        os.kill(server.pid, signal.SIGABRT)
        return "requests failed"

    record = await serve(fake_launcher(tmp_path), use)
    assert record.state is ArmState.DIED


async def test_use_that_gives_up_on_a_living_server_says_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qualify.serving.session._GONE_WITHIN_S", 0.3)

    async def use(_: Server) -> str:
        return "3 requests in flight, nothing heard"

    record = await serve(fake_launcher(tmp_path), use)
    assert record.state is ArmState.HUNG
    assert record.detail == "3 requests in flight, nothing heard"


async def test_error_of_use_passes_through_after_the_stop(tmp_path: Path) -> None:
    used: list[ProcessServer] = []

    async def use(server: Server) -> None:
        assert isinstance(server, ProcessServer)
        used.append(server)
        raise EvidenceError("tokens are missing")

    with pytest.raises(EvidenceError, match="tokens are missing"):
        await serve(fake_launcher(tmp_path), use)
    assert guard.session_members(used[0].pid) == []


@pytest.mark.parametrize("wait_s", [0.05, 1.5])
async def test_interrupted_while_loading_or_in_use(tmp_path: Path, wait_s: float) -> None:
    task = asyncio.create_task(serve(fake_launcher(tmp_path), for_ever))
    await asyncio.sleep(wait_s)
    task.cancel()
    record = await task
    assert record.state is ArmState.INTERRUPTED


HARNESS = """
import asyncio, sys
from pathlib import Path
from qualify.interrupts import run_interruptible
from qualify.serving.session import serve_async
from tests.fake_server.starting import fake_launcher
from tests.serving.test_session import SESSION

async def use(server):
    print(server.pid, flush=True)
    await asyncio.sleep(60)

launcher = fake_launcher(Path(sys.argv[1]))
record = run_interruptible(serve_async(SESSION, launcher, use, progress=lambda _: None))
print(record.outcome.state, record.interrupted, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_harness_come_back_as_interrupted(tmp_path: Path, number: int) -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    server = int(harness.stdout.readline())
    harness.send_signal(number)
    out, _ = harness.communicate(timeout=15)
    assert out.strip() == "interrupted True"
    assert harness.returncode == 0
    assert guard.session_members(server) == []


async def test_attached_server_is_used_and_left_running(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        record = await serve(AttachLauncher(server.url))
        assert server.ended() is None
    assert record.state is ArmState.SERVED
    assert record.peak_rss_bytes is None


async def test_attached_server_under_another_name(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        other = Session(arm=Arm.BASELINE, fault=None, served_name="other", ready_within_s=5)
        record = await serve(AttachLauncher(server.url), session=other)
    assert record.state is ArmState.MACHINERY
    assert "it serves fake, not other" in record.detail


async def test_nobody_to_attach_to() -> None:
    session = Session(arm=Arm.BASELINE, fault=None, served_name=NAME, ready_within_s=0.5)
    record = await serve(AttachLauncher(f"http://127.0.0.1:{free_port()}"), session=session)
    assert record.state is ArmState.MACHINERY
    assert "there is no usable server" in record.detail
    assert "/health does not answer" in record.detail


async def test_attached_server_that_goes_away_is_no_finding(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:

        async def use(_: Server) -> str:
            await server.stop()
            return "requests failed"

        record = await serve(AttachLauncher(server.url), use)
    assert record.state is ArmState.KILLED
    assert record.detail == "requests failed; what became of an attached server cannot be seen"


async def test_attached_server_that_hangs_is_told_from_outside(tmp_path: Path) -> None:
    async def use(_: Server) -> str:
        return "nothing heard"

    async with fake_server(tmp_path) as server:
        record = await serve(AttachLauncher(server.url), use)
    assert record.state is ArmState.HUNG
