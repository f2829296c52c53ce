"""Engine and registry end with the command that started them, also where that is killed."""

import os
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
