from __future__ import annotations

from dataclasses import replace

import pytest

from qualify.compare import coverage
from qualify.compare.figures import Power, in_known_units
from qualify.findings import NOT_MEASURED, STEP_LOG
from qualify.policy import CoveragePolicy
from qualify.transcript import Arm
from tests.judgefactory import World, build


@pytest.mark.parametrize(
    ("max_model_len", "capacity", "longest"),
    [
        (16_384, 128, None),
        (32_768, 256, 16_511),
        (131_072, 1_024, 65_663),
        (262_144, 2_048, 131_199),
        (1_048_576, 8_192, 524_415),
    ],
)
def test_window_of_the_packed_stride(max_model_len: int, capacity: int, longest: int | None) -> None:
    assert coverage.capacity_entries(max_model_len, 128) == capacity
    assert coverage.shows_up_to(max_model_len, 128) == longest
    if longest is not None:
        width = 1 << (max(128, longest // 128) - 1).bit_length()
        beyond = 1 << (max(128, (longest + 1) // 128) - 1).bit_length()
        assert width < capacity <= beyond


def test_cells_are_measured_and_their_shortfalls_said() -> None:
    record = build(World(scenarios={"eight": 8}, tokens=6))
    cells = {cell.name: cell for cell in coverage.measure(record, CoveragePolicy(), 48)}
    assert cells["rows in one decode step of the candidate"].reached == "at most 8"
    assert cells["decode steps of the candidate that were replays"].reached == "10 of 10 (100.0%)"
    assert cells["replays in the baseline"].reached == "0 of 15 steps"
    assert cells["positions compared"].reached == "48"
    assert "eight" in cells["scenarios inside the window in which a packed stride can show"].reached
    assert not coverage.shortfalls(tuple(cells.values()), CoveragePolicy())
    strict = CoveragePolicy(minimum_rows=9, judged_positions=49)
    short = coverage.shortfalls(coverage.measure(record, strict, 48), strict)
    assert len(short) == 2
    said = coverage.limitations(record, coverage.measure(record, strict, 48))
    assert any("at most 8" in text for text in said)
    assert any("No context longer than 1706 tokens was tried, of 32768" in text for text in said)
    assert any("seen were 8" in text for text in said)


def test_scenario_beyond_the_window_is_not_called_inside() -> None:
    record = build(World(scenarios={"eight": 8}, tokens=6))
    longer = replace(
        record.scenarios[0],
        name="long",
        requests=tuple(replace(item, context_tokens=20_000) for item in record.scenarios[0].requests),
    )
    record = replace(record, scenarios=(*record.scenarios, longer))
    cells = {cell.name: cell.reached for cell in coverage.measure(record, CoveragePolicy(), 48)}
    reached = cells["scenarios inside the window in which a packed stride can show"]
    assert reached.startswith("eight (")


def test_nothing_recorded_is_not_measured_and_not_satisfied() -> None:
    record = replace(build(World(scenarios={"eight": 8}, tokens=6)), steps={})
    cells = coverage.measure(record, CoveragePolicy(), 48)
    unmeasured = [cell for cell in cells if cell.reached == NOT_MEASURED and cell.how == STEP_LOG]
    assert len(unmeasured) == 3
    assert all(cell.satisfied is False for cell in unmeasured)
    assert len(coverage.shortfalls(cells, CoveragePolicy())) == 3


def test_partial_replay_is_short_of_the_share() -> None:
    record = build(World(scenarios={"eight": 8}, tokens=6))
    steps = record.steps[Arm.CANDIDATE]
    whole = steps.whole.copy()
    whole[0] = False
    record = replace(record, steps={**record.steps, Arm.CANDIDATE: replace(steps, whole=whole)})
    usual, lenient = CoveragePolicy(), CoveragePolicy(replay_share=0.9)
    (short,) = coverage.shortfalls(coverage.measure(record, usual, 48), usual)
    assert "9 of 10" in short.summary
    assert not coverage.shortfalls(coverage.measure(record, lenient, 48), lenient)


def test_what_the_floor_cannot_see_is_said_in_known_units() -> None:
    said = coverage.unseen(Power(requests=16, needed=7, share=0.61, gentle=0.001))
    assert "fewer than 61.0% of the requests" in said[0]
    assert "less than 0.001 nats" in said[1]
    assert "between Q8_0 and Q5_K_M" in said[1]
    assert coverage.unseen(Power(requests=16, needed=1, share=0.17, gentle=0.0)) == [said_exact := said_of(1)]
    assert "1 of 16" in said_exact
    none = coverage.unseen(Power(requests=2, needed=None, share=None, gentle=None))
    assert "No fault could have been found" in none[0]
    assert "could not have been found" in none[1]


def said_of(needed: int) -> str:
    return coverage.unseen(Power(requests=16, needed=needed, share=0.17, gentle=0.0))[0]


@pytest.mark.parametrize(
    ("nats", "said"),
    [
        (0.0001, "less than Q8_0 costs"),
        (0.0003, "between Q8_0 and Q5_K_M"),
        (0.01, "between Q5_K_M and Q3_K_S"),
        (1.0, "more than Q3_K_S costs"),
    ],
)
def test_known_units(nats: float, said: str) -> None:
    assert in_known_units(nats) == said
