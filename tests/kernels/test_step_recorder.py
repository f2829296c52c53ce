"""The step log: whole lines, written at once, and ids that map back to the client's."""

import json
import os
import subprocess
import sys

import pytest
from ds4_kernels.step_recorder import (
    StepKind,
    StepRecorder,
    StepRow,
    client_request_id,
    step_kind,
    step_log_path,
)

ROWS = [StepRow("cmpl-a-0-1f2e3d4c", 0, 1, 150), StepRow("cmpl-b-0-00000000", 1, 512, 0)]


def test_one_line_a_step(tmp_path):
    path = tmp_path / "steps.jsonl"
    recorder = StepRecorder(path, "emulated replay")
    recorder.record(12.5, StepKind.MIXED, ROWS, 0)
    recorder.record(13.5, StepKind.DECODE, ROWS[:1], 1)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]  # before it is closed
    recorder.close()
    assert first == {
        "step": 0,
        "time_s": 12.5,
        "kind": "mixed",
        "replay": "emulated replay",
        "rows_replayed": 0,
        "rows": [
            {"request_id": "cmpl-a-0-1f2e3d4c", "row": 0, "scheduled_tokens": 1, "computed_tokens": 150},
            {"request_id": "cmpl-b-0-00000000", "row": 1, "scheduled_tokens": 512, "computed_tokens": 0},
        ],
    }
    assert (second["step"], second["kind"], second["rows_replayed"]) == (1, "decode", 1)


def test_lines_are_appended(tmp_path):
    path = tmp_path / "steps.jsonl"
    for _ in range(2):
        recorder = StepRecorder(path, "none")
        recorder.record(0.0, StepKind.DECODE, ROWS, 0)
        recorder.close()
    assert len(path.read_text().splitlines()) == 2


def test_each_line_is_one_write(tmp_path, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    recorder = StepRecorder(tmp_path / "steps.jsonl", "none")
    recorder.record(0.0, StepKind.DECODE, ROWS * 200, 0)
    recorder.close()
    assert len(writes) == 1
    assert writes[0].endswith(b"\n")
    assert writes[0].count(b"\n") == 1


def test_a_short_write_is_an_error(tmp_path, monkeypatch):
    recorder = StepRecorder(tmp_path / "steps.jsonl", "none")
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    with pytest.raises(OSError, match="step 0"):
        recorder.record(0.0, StepKind.DECODE, ROWS, 0)


def test_a_killed_process_leaves_its_lines(tmp_path):
    path = tmp_path / "steps.jsonl"
    code = (
        "import os, sys, pathlib\n"
        "from ds4_kernels.step_recorder import *\n"
        "r = StepRecorder(pathlib.Path(sys.argv[1]), 'none')\n"
        "for i in range(5): r.record(0.0, StepKind.DECODE, [StepRow('a', 0, 1, i)], 0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("requests", "decodes", "kind"),
    [(3, 3, StepKind.DECODE), (3, 0, StepKind.PREFILL), (3, 1, StepKind.MIXED)],
)
def test_kinds(requests, decodes, kind):
    assert step_kind(requests, decodes) is kind


@pytest.mark.parametrize(
    ("internal", "client"),
    [
        ("cmpl-r-7-0-911613b9", "r-7"),
        ("cmpl-needle.3-12-0badf00d", "needle.3"),
        ("chatcmpl-r-7-911613b9", "r-7"),
        ("something else", "something else"),
    ],
)
def test_client_ids(internal, client):
    assert client_request_id(internal) == client


def test_path_from_the_environment(tmp_path):
    assert step_log_path({}) is None
    assert step_log_path({"DS4_STEP_LOG": str(tmp_path / "s.jsonl")}) == tmp_path / "s.jsonl"
    for wrong in (tmp_path, tmp_path / "missing" / "s.jsonl"):
        with pytest.raises(ValueError, match="DS4_STEP_LOG"):
            step_log_path({"DS4_STEP_LOG": str(wrong)})
