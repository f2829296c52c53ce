from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from qualify.errors import MachineryError, UsageError
from qualify.serving import guard
from qualify.serving.arms import ServerCommand
from qualify.serving.process import ProcessLauncher, free_port
from tests.fake_server.starting import ROOT, fake_launcher, fake_server


async def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def script(directory: Path, text: str, **environment: str) -> ProcessLauncher:
    command = ServerCommand((sys.executable, "-c", text), tuple(environment.items()), directory)
    return ProcessLauncher(lambda port: command, log=directory / "server.log", stop_within_s=0.5)


async def test_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        members = guard.session_members(server.pid)
        assert len(members) == 2  # the server and its worker
    assert guard.session_members(server.pid) == []
    assert not any(runs(pid) for pid in members)


async def test_no_guard_is_left_either(tmp_path: Path) -> None:
    async with fake_server(tmp_path):
        guards = [child for child in psutil.Process().children() if "guard.py" in " ".join(child.cmdline())]
        assert len(guards) == 1
    assert not guards[0].is_running()


async def test_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    server = script(tmp_path, text).start()
    await until(lambda: server.last_line() == "up")
    started = time.monotonic()
    await server.stop()
    assert 0.5 <= time.monotonic() - started < 30
    assert guard.session_members(server.pid) == []


async def test_children_in_other_process_groups_are_ended_too(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0)\n"
        "print('up', flush=True); time.sleep(60)"
    )
    server = script(tmp_path, text).start()
    await until(lambda: server.last_line() == "up")
    assert len(guard.session_members(server.pid)) == 2
    await server.stop()
    assert guard.session_members(server.pid) == []


async def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    server = script(tmp_path, "import time; time.sleep(60)").start()
    await server.stop()
    await server.stop()


async def test_cancelled_stop_still_ends_everything(tmp_path: Path) -> None:
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    server = script(tmp_path, text).start()
    await until(lambda: server.last_line() == "up")
    task = asyncio.create_task(server.stop())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert guard.session_members(server.pid) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_harness_that_is_killed_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    harness = (
        "import sys, time; from pathlib import Path\n"
        "from tests.fake_server.starting import fake_launcher\n"
        "server = fake_launcher(Path(sys.argv[1])).start()\n"
        "print(server.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", harness, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    server = int(process.stdout.readline())
    await until(lambda: len(guard.session_members(server)) == 2)
    process.send_signal(number)
    process.wait(10)
    await until(lambda: not guard.session_members(server), within_s=5)


async def test_exit_code_and_signal_are_seen(tmp_path: Path) -> None:
    for text, code in (("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)):
        server = script(tmp_path, text).start()
        await until(server.ended)
        seen = server.ended()
        await server.stop()
        assert seen is not None
        assert (seen.returncode, seen.lost_child) == (code, None)


async def test_fork_of_a_worker_is_no_worker(tmp_path: Path) -> None:
    # For a moment a worker that runs a command is two processes of one title.
    worker = (
        "import os, time\n"
        "if os.fork() == 0: time.sleep(2); os._exit(0)\n"
        "os.wait(); print('forked', flush=True); time.sleep(60)"
    )
    text = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen(['VLLM::Worker', '-c', {worker!r}], executable=sys.executable)\n"
        "time.sleep(60)"
    )
    server = script(tmp_path, text).start()
    try:
        await until(lambda: server.ended() is not None or len(guard.session_members(server.pid)) == 3)
        await until(lambda: server.ended() is not None or server.last_line() == "forked")
        assert len(server.watch.workers) == 1
        assert server.ended() is None
    finally:
        await server.stop()


async def test_vanished_worker_is_noticed_at_once(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        await until(lambda: server.ended() is None and len(server.watch.workers) == 1)
        (worker,) = (pid for pid in guard.session_members(server.pid) if pid != server.pid)
        os.kill(worker, signal.SIGKILL)
        await until(server.ended, within_s=1)
        seen = server.ended()
    assert seen is not None
    assert seen.returncode is None
    assert seen.lost_child == f"VLLM::EngineCore (process {worker})"


async def test_peak_memory_of_all_processes_is_measured(tmp_path: Path) -> None:
    text = "import time; data = b'x' * 100_000_000; print('up', flush=True); time.sleep(60)"
    server = script(tmp_path, text).start()
    await until(lambda: server.last_line() == "up")
    server.watch.sample(at_once=True)
    assert server.ended() is None
    await server.stop()
    assert server.peak_rss_bytes is not None
    assert 100_000_000 < server.peak_rss_bytes < 200_000_000


async def test_log_tail_is_short_and_clean(tmp_path: Path) -> None:
    text = (
        "for n in range(500): print(n)\n"
        "print('\\x1b[31mred\\x00', 'x' * 2000, flush=True)\n"
        "import time; time.sleep(60)"
    )
    server = script(tmp_path, text).start()
    await until(lambda: "red" in server.last_line())
    tail = server.log_tail(3)
    await server.stop()
    assert tail[:2] == ("498", "499")
    assert tail[2].startswith(" [31mred  xxx")
    assert len(tail[2]) <= 500


async def test_server_sees_little_of_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    server = script(tmp_path, "import os; print(sorted(os.environ), flush=True)", GIVEN="1").start()
    await until(server.ended)
    await server.stop()
    assert "'GIVEN'" in server.last_line()
    assert "HF_TOKEN" not in server.last_line()


def test_given_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 cannot be used: Address already"):
            fake_launcher(tmp_path, port=port).start()
    assert not (tmp_path / "server.log").exists()


async def test_given_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    server = fake_launcher(tmp_path, port=port).start()
    await server.stop()
    assert server.url == f"http://127.0.0.1:{port}"


def test_missing_interpreter_is_the_machines_trouble(tmp_path: Path) -> None:
    command = ServerCommand((str(tmp_path / "python"),), (), tmp_path)
    launcher = ProcessLauncher(lambda port: command, log=tmp_path / "log", stop_within_s=1)
    with pytest.raises(MachineryError, match="no Python interpreter at") as caught:
        launcher.start()
    assert "make install-serving" in caught.value.advice


def test_process_that_cannot_be_made_leaves_no_guard(tmp_path: Path) -> None:
    before = psutil.Process().children()
    command = ServerCommand((sys.executable,), (), tmp_path / "nowhere")
    with pytest.raises(MachineryError, match="cannot be started"):
        ProcessLauncher(lambda port: command, log=tmp_path / "log", stop_within_s=1).start()
    assert psutil.Process().children() == before
