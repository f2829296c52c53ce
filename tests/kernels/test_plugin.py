"""The plugin's own checks, in a process of its own as vLLM's are, and what it does in each step."""

import json
import os
import subprocess
import sys

import pytest
from ds4_kernels.cpu import registration
from ds4_kernels.emulated_replay import ReplayMode, ReplaySettings, read_settings
from ds4_kernels.faults import CATALOGUE
from ds4_kernels.step_recorder import StepRow

CONFIRMED = {"DS4_FAULT_CONFIRM": "yes-break-this-server"}


def register(code: str = "", **environment: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DS4_")}
    program = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from ds4_kernels.plugin import register; register(); register()\n" + code
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_crash_by_itself_leaves_a_message():
    run = register(code="import os; os.abort()")
    assert run.returncode == -6
    assert "Fatal Python error: Aborted" in run.stderr


def test_it_says_in_one_line_what_it_installed():
    run = register(DS4_REPLAY="emulated", DS4_FAULT="packed-stride", **CONFIRMED)
    assert run.returncode == 0, run.stderr
    log = run.stdout + run.stderr
    assert log.count("all 14 of ds4_kernels") == 1
    assert "attention: C, " in log
    assert "replay: emulated replay" in log
    (warning,) = [line for line in log.splitlines() if "FAULT PUT IN ON PURPOSE" in line]
    assert "WARNING" in warning
    assert "packed-stride" in warning


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"DS4_FAULT": "packed-stride", "DS4_REPLAY": "emulated"}, "DS4_FAULT_CONFIRM=yes-break-this-server"),
        ({"DS4_STEP_LOG": "/no/such/folder/steps.jsonl"}, "DS4_STEP_LOG=/no/such/folder/steps.jsonl"),
        ({"DS4_CPU_ATTENTION": "gpu"}, "expected one of c, torch"),
    ],
)
def test_a_wrong_environment_stops_the_server_with_one_message(environment, message):
    run = register(**environment)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ds4_kernels: ")
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_vllm_that_serves_it_on_no_cpu_gets_its_stride_looked_after():
    hidden = (
        "import importlib.util as util, logging; logging.basicConfig(level=logging.INFO)\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name: None if name.endswith('deepseek_v4.cpu') else find(name)\n"
        "from ds4_kernels import plugin\n"
        "plugin.register()\n"
        "print('active:', plugin.active())"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DS4_")}
    run = subprocess.run(
        [sys.executable, "-c", hidden], env=clean, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "C128A stride fix: DS4_STRIDE_FIX=auto" in run.stdout + run.stderr
    assert "active: True" in run.stdout


def rows(count):
    return [StepRow(f"cmpl-{row}-0-00000000", row, 1, 150 + row) for row in range(count)]


def test_steps_are_recorded_with_their_replay(tmp_path, monkeypatch):
    class Replay:
        rows_replayed = 2

    monkeypatch.setenv("DS4_STEP_LOG", str(tmp_path / "steps.jsonl"))
    watcher = registration.EngineWatcher(ReplaySettings(ReplayMode.EMULATED, None))
    assert watcher.needed
    watcher.set_replay(Replay())
    watcher.step(1.0, rows(2), num_decodes=2)
    Replay.rows_replayed = 0
    watcher.step(2.0, rows(3), num_decodes=2)
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(x["kind"], x["rows_replayed"], x["replay"]) for x in lines] == [
        ("decode", 2, "emulated replay"),
        ("mixed", 0, "emulated replay"),
    ]


def test_without_log_and_abort_there_is_nothing_to_do(monkeypatch):
    monkeypatch.delenv("DS4_STEP_LOG", raising=False)
    settings = ReplaySettings(ReplayMode.EMULATED, CATALOGUE["packed-stride"])
    assert not registration.EngineWatcher(settings).needed


def test_abort_under_load_records_the_step_it_dies_in(tmp_path):
    """The engine aborts by itself: SIGABRT, and the step log names the rows of that step."""
    code = (
        "import os\n"
        "from ds4_kernels.cpu.registration import EngineWatcher\n"
        "from ds4_kernels.emulated_replay import read_settings\n"
        "from ds4_kernels.step_recorder import StepRow\n"
        "watcher = EngineWatcher(read_settings(os.environ))\n"
        "rows = [StepRow(f'cmpl-{r}-0-00000000', r, 1, 9) for r in range(4)]\n"
        "for step in range(100): watcher.step(float(step), rows, num_decodes=4)\n"
    )
    path = tmp_path / "steps.jsonl"
    environment = {**os.environ, **CONFIRMED, "DS4_FAULT": "abort-under-load", "DS4_STEP_LOG": str(path)}
    assert read_settings(environment).abort_steps == 20
    died = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=False, capture_output=True, timeout=300
    )
    assert died.returncode == -6, died.stderr
    assert len(path.read_text().splitlines()) == 20
