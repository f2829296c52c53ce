"""Every recorded run of known truth gets the verdict that its truth demands."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from qualify.findings import Result, Verdict, Weight
from qualify.simulate.evidence import (
    FOLDER,
    Case,
    RecordedSet,
    as_expected,
    cases,
    judge_case,
    load_set,
)

ROOT = Path(__file__).parents[2]
SETS = (
    "h200-forced-c4-live",
    "h200-forced-c4-muted",
    "h200-offline-c4-live",
    "h200-offline-c4-muted",
    "h200-server-c4-muted",
    "h200-server-forced-c4-muted",
)


@cache
def recorded(folder: str) -> RecordedSet:
    return load_set(ROOT / FOLDER / f"{folder}.tar.xz")


def whole(folder: str, mode: str, metadata: str, number: int = 1) -> Verdict:
    (case,) = [
        case
        for case in cases(folder, recorded(folder))
        if (case.mode, case.metadata, case.number) == (mode, metadata, number)
        and len(case.scenarios) > 1
        and case.left_out is None
    ]
    return judge_case(case, recorded(folder))


@pytest.mark.parametrize("folder", SETS)
def test_every_run_gets_the_verdict_that_its_truth_demands(folder: str) -> None:
    judged = [(case, judge_case(case, recorded(folder))) for case in cases(folder, recorded(folder))]
    wrong = [f"{case}: {verdict.result}" for case, verdict in judged if not as_expected(case, verdict)]
    assert not wrong
    assert {case.faulty for case, _ in judged} >= {True, False}


@pytest.mark.parametrize("folder", SETS)
def test_row_zero_is_never_named_for_a_packed_stride(folder: str) -> None:
    for mode in ("full-graph", "full-graph-async"):
        for case in cases(folder, recorded(folder)):
            if (case.mode, case.metadata) == (mode, "packed") and case.faulty:
                (found,) = [
                    item for item in judge_case(case, recorded(folder)).findings if item.rule == "divergence"
                ]
                assert 0 not in found.rows
                assert found.rows


@pytest.mark.parametrize("folder", ["h200-forced-c4-live", "h200-forced-c4-muted"])
def test_last_row_fault_is_rejected(folder: str) -> None:
    assert whole(folder, "full-graph", "packed-last-row").result is Result.REJECTED


def test_one_wrong_row_of_one_step_is_found_where_the_floor_is_zero() -> None:
    folder = "h200-offline-c4-muted"
    case = Case(folder, ("long4",), None, "full-graph", "packed", 1, True)
    verdict = judge_case(case, recorded(folder))
    assert verdict.result is Result.REJECTED
    assert verdict.comparison is not None
    assert verdict.comparison.exact
    assert verdict.comparison.arms[0].spread.differ == 1


def test_missing_newest_entry_is_rejected_or_named_as_unseen() -> None:
    assert whole("h200-forced-c4-muted", "full-graph", "newest-entry-missing").result is Result.REJECTED
    live = whole("h200-forced-c4-live", "full-graph", "newest-entry-missing")
    assert live.result is Result.REJECTED
    assert live.comparison is not None
    fired = [item.rule for item in live.comparison.arms[0].evidence if item.fired]
    assert fired == ["shift"], "its distances hide below the floor; only the sign of all of them tells"


def test_what_a_thin_floor_cannot_see_is_named() -> None:
    folder = "h200-forced-c4-live"
    case = Case(folder, ("short8",), None, "full-graph", "newest-entry-missing", 1, None)
    verdict = judge_case(case, recorded(folder))
    assert verdict.result is Result.INCONCLUSIVE
    (said,) = [text for text in verdict.limitations if "hides below this floor" in text]
    assert verdict.comparison is not None
    power = verdict.comparison.arms[0].power
    assert power is not None
    assert power.gentle is not None
    assert power.gentle > 0.0006
    assert "one missing attention key" in said


def test_no_recorded_right_run_comes_near_a_limit() -> None:
    """The tests are calibrated: a right run's smallest p is no smaller than so many tests make likely."""
    smallest = []
    for folder in SETS:
        for case in cases(folder, recorded(folder)):
            verdict = judge_case(case, recorded(folder))
            if case.faulty is False and len(case.scenarios) > 1 and verdict.comparison is not None:
                p = [item.p for item in verdict.comparison.arms[0].evidence if item.p is not None]
                smallest.append(min(p))
                assert not any(item.weight is Weight.DEFECT for item in verdict.findings)
    assert len(smallest) >= 12
    assert min(smallest) > 0.01
