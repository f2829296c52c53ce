"""Which runs an arm is driven with: one answer for whoever drives, requires or reports them."""

from __future__ import annotations

import pytest

from qualify.transcript import Arm, planned_runs


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
