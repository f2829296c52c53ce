from __future__ import annotations

import json
from pathlib import Path

import pytest

from qualify.errors import EvidenceError
from qualify.serving.steps import StepLog, server_request_id
from qualify.steps import Step, StepRow


def line(step: int, *rows: tuple[str, int, int, int]) -> str:
    names = ("request_id", "row", "scheduled_tokens", "computed_tokens")
    return json.dumps(
        {
            "step": step,
            "time_s": 1.5,
            "kind": "decode",
            "replay": "emulated replay",
            "rows_replayed": len(rows),
            "rows": [dict(zip(names, row, strict=True)) for row in rows],
        }
    )


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def test_rows_come_in_row_order_with_the_ids_that_were_sent(tmp_path: Path) -> None:
    path = write(tmp_path / "s", line(0, ("cmpl-b-0-0123abcd", 1, 1, 9), ("cmpl-a-0-0123abcd", 0, 1, 7)))
    assert list(StepLog(path)) == [
        Step(
            kind="decode",
            rows=(
                StepRow(server_request_id="a", row=0, computed_tokens=7, scheduled_tokens=1),
                StepRow(server_request_id="b", row=1, computed_tokens=9, scheduled_tokens=1),
            ),
            replay="emulated replay",
        ),
    ]


def test_step_in_which_no_row_was_replayed_was_not_replayed(tmp_path: Path) -> None:
    (step,) = StepLog(write(tmp_path / "s", line(0)))
    assert step.replay == "none"


@pytest.mark.parametrize(
    ("internal", "sent"),
    [
        ("cmpl-candidate.free.run1-mixed-ask-3-0-be08dc3f", "candidate.free.run1-mixed-ask-3"),
        ("cmpl-candidate.free.run1-mixed-ask-3-0", "candidate.free.run1-mixed-ask-3"),
        ("cmpl-x-0-0-be08dc3f", "x-0"),
        ("warm-up", "warm-up"),
    ],
)
def test_internal_ids_are_traced_back(internal: str, sent: str) -> None:
    assert server_request_id(internal) == sent


def test_no_file_means_nothing_recorded(tmp_path: Path) -> None:
    assert list(StepLog(tmp_path / "none")) == []


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_last_line_of_a_killed_server_may_be_cut(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "s", line(0), line(1)[:cut], end="")
    log = StepLog(path)
    assert len(list(log)) == 1
    assert log.torn
    whole = StepLog(write(tmp_path / "whole", line(0), line(1)))
    assert len(list(whole)) == 2
    assert not whole.torn


def test_garbage_before_the_end_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "s", line(0), line(1)[:20], line(2))
    with pytest.raises(EvidenceError, match="not an engine step") as caught:
        list(StepLog(path))
    assert caught.value.where == f"{path}:2"


@pytest.mark.parametrize("second", [0, 2, 7])
def test_missing_or_repeated_steps_are_refused(tmp_path: Path, second: int) -> None:
    path = write(tmp_path / "s", line(0), line(second))
    with pytest.raises(EvidenceError, match=f"step {second} follows step 0"):
        list(StepLog(path))
