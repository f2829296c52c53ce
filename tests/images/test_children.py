"""Engine and registry end with the command that started them, also where that is killed."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from qualify.errors import MachineryError
from qualify.images import local_engine
from tests.images.conftest import ROOT

STARTS = """
import sys, time
from pathlib import Path
from qualify.images.children import start_child
print(start_child(["sleep", "60"], Path(sys.argv[1])).pid, flush=True)
time.sleep(60)
"""


def test_child_of_a_killed_parent_ends(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS, tmp_path / "log"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while child.name() != "sleep":  # it is tied only once it has become the program
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    child.wait(10)
    assert not child.is_running()


STOPS = """
import contextlib, sys
from pathlib import Path
from types import SimpleNamespace
from qualify.images import local_engine

@contextlib.contextmanager
def engine(folder):
    yield "unix:///nowhere"
    print("engine stopped", flush=True)

@contextlib.contextmanager
def registry(folder, port):
    yield SimpleNamespace(address="127.0.0.1:1")

local_engine.local_engine, local_engine.local_registry = engine, registry
print("code", local_engine.run_with_engine(sys.argv[1:], Path(), None), flush=True)
"""
LONG = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.3)
    sys.exit(print("command ended", flush=True))
signal.signal(signal.SIGTERM, end)
print("command started", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("shell", ["true; {}; true", "exec {}"])
def test_sigterm_reaches_the_command_in_a_shell_before_the_engine_stops(shell: str) -> None:
    inner = shell.format(f"{shlex.quote(sys.executable)} -c {shlex.quote(LONG)}")
    command = [sys.executable, "-c", STOPS, "/bin/sh", "-ec", inner]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "command started\n"
    process.terminate()
    said = process.stdout.read().splitlines()
    code = 0 if shell.startswith("exec") else 130
    assert said == ["command ended", "engine stopped", f"code {code}"]


def test_shell_that_tells_of_its_commands_end_by_sigterm_was_interrupted() -> None:
    command = [
        sys.executable,
        "-c",
        STOPS,
        "/bin/sh",
        "-ec",
        "trap 'exit 143' TERM; echo command started; sleep 60",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "command started\n"
    time.sleep(0.2)  # until sleep has begun
    process.terminate()
    assert process.stdout.read().splitlines() == ["engine stopped", "code 130"]


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_command_gives_the_exit_code(command: str, code: int) -> None:
    words = [sys.executable, "-c", STOPS, "/bin/sh", "-ec", command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["engine stopped", f"code {code}"]


def test_engine_of_another_command_is_not_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(local_engine, "_STOP_WITHIN_S", 0.3)
    monkeypatch.setattr(local_engine, "_DAEMON", psutil.Process().name())
    pidfile = tmp_path / "docker.pid"
    pidfile.write_text(str(os.getpid()))
    with pytest.raises(MachineryError, match="another command uses"):
        local_engine._wait_until_gone(tmp_path)
    assert pidfile.exists()


def test_what_a_killed_engine_left_does_not_stop_the_next(tmp_path):
    pidfile = tmp_path / "docker.pid"
    for left in ("4194303", str(os.getpid()), "", "x"):  # nobody's id, another program's, and none
        pidfile.write_text(left)
        local_engine._wait_until_gone(tmp_path)
        assert not pidfile.exists()
