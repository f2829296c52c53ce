"""Which runs an arm is driven with, for whoever drives, requires or reports them; what is no transcript."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qualify.errors import EvidenceError
from qualify.transcript import Arm, Decode, RunKey, encode, planned_runs, read_transcripts
from tests.judgefactory import World, no_fault, transcript


@pytest.mark.parametrize(
    ("arm", "ways", "expected"),
    [
        (Arm.BASELINE, {"free"}, "free.run1 free.run2 free.run3"),
        (Arm.CANDIDATE, {"free"}, "free.run1"),
        (Arm.BASELINE, {"free", "forced"}, "free.run1 forced.run1 forced.run2 forced.run3"),
        (Arm.CONTROL, {"free", "forced", "alone"}, "free.run1 forced.run1"),
        (Arm.CANDIDATE, {"free", "forced", "alone"}, "free.run1 forced.run1 alone.run1"),
    ],
)
def test_the_runs_of_an_arm(arm: Arm, ways: set[str], expected: str) -> None:
    assert [f"{key}" for key in planned_runs(arm, ways, 3)] == [f"{arm}.{run}" for run in expected.split()]


def test_two_free_runs_at_least_where_they_are_the_floor() -> None:
    assert len(planned_runs(Arm.BASELINE, {"free"}, 1)) == 2


def test_lists_that_do_not_fit_together_are_damage_and_no_nan_of_the_server(tmp_path: Path) -> None:
    good = transcript(
        World(scenarios={"one": 1}, tokens=4), RunKey(Arm.CANDIDATE, Decode.FREE, 1), "one", 0, no_fault
    )
    row = good.top_logprobs[2]
    path = tmp_path / "free.run1.jsonl"
    for cut in (good.top_logprobs[:-1], (*good.top_logprobs[:2], row[:-1], good.top_logprobs[3])):
        path.write_bytes(encode(good) + encode(replace(good, top_logprobs=cut)))
        with pytest.raises(EvidenceError, match=r"free.run1.jsonl:2: top_ids and top_logprobs"):
            list(read_transcripts(path))
