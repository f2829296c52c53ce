from __future__ import annotations

import numpy as np

from qualify.compare.rows import UNKNOWN, Placement, place
from qualify.compare.strata import since_prefill, strata
from qualify.runtable import RunTable, collect
from qualify.steps import Step, StepRow, StepTable, collect_steps
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import World, no_fault, transcript

KEY = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)


def run_of(count: int, tokens: int = 4) -> RunTable:
    world = World(scenarios={"some": count}, tokens=tokens)
    return collect(KEY, [transcript(world, KEY, "some", index, no_fault) for index in range(count)])


def row(run: RunTable, index: int, number: int, computed: int, scheduled: int = 1) -> StepRow:
    return StepRow(
        server_request_id=run.heads[index].server_request_id,
        row=number,
        computed_tokens=computed,
        scheduled_tokens=scheduled,
    )


def two_requests() -> tuple[RunTable, StepTable]:
    """Request 0 (1,000 tokens) is decoded alone, then with request 1 (1,100 tokens), then moves to row 1."""
    run = run_of(2)
    other = StepRow(server_request_id="warm-up", row=0, computed_tokens=1000, scheduled_tokens=1)
    return run, collect_steps(
        [
            Step(kind="prefill", rows=(row(run, 0, 0, 0, 1000),), replay="none"),
            Step(kind="decode", rows=(row(run, 0, 0, 1000),), replay="FULL", padded_rows=1),
            Step(kind="mixed", rows=(row(run, 0, 0, 1001), row(run, 1, 1, 0, 1100)), replay="none"),
            Step(
                kind="decode",
                rows=(row(run, 1, 0, 1100), row(run, 0, 1, 1002)),
                replay="FULL",
                padded_rows=4,
            ),
            Step(kind="decode", rows=(other, row(run, 1, 1, 1101)), replay="FULL", padded_rows=2),
            Step(kind="decode", rows=(row(run, 1, 0, 1102),), replay="FULL", padded_rows=1),
        ],
        "FULL",
    )


def test_each_token_is_traced_to_the_row_that_computed_it() -> None:
    run, steps = two_requests()
    placement = place(run, steps)
    first, second = (placement.row[head.positions] for head in run.heads)
    assert list(first) == [UNKNOWN, 0, 0, 1]
    assert list(second) == [UNKNOWN, 0, 1, 0]
    assert list(placement.step[run.heads[1].positions]) == [UNKNOWN, 3, 4, 5]
    assert list(placement.context[run.heads[1].positions]) == [1100, 1101, 1102, 1103]
    assert placement.recorded


def test_drafts_give_several_tokens_to_one_row_and_a_draft_turned_down_is_computed_again() -> None:
    run = run_of(1, tokens=8)
    steps = collect_steps(
        [
            Step(kind="prefill", rows=(row(run, 0, 0, 0, 1000),), replay="none"),
            Step(kind="decode", rows=(row(run, 0, 3, 1000, 4),), replay="FULL"),  # all drafts are right
            Step(kind="decode", rows=(row(run, 0, 2, 1004, 4),), replay="FULL"),  # the first alone is
            Step(kind="decode", rows=(row(run, 0, 1, 1006, 4),), replay="FULL"),
        ],
        "FULL",
    )
    placement = place(run, steps)
    assert list(placement.step) == [UNKNOWN, 1, 1, 1, 1, 2, 2, 3]
    assert list(placement.row) == [UNKNOWN, 3, 3, 3, 3, 2, 2, 1]


def test_what_is_computed_again_after_a_preemption_was_emitted_before() -> None:
    run = run_of(1, tokens=6)
    steps = collect_steps(
        [
            Step(kind="prefill", rows=(row(run, 0, 0, 0, 1000),), replay="none"),
            *(Step(kind="decode", rows=(row(run, 0, 0, 1000 + token),), replay="FULL") for token in range(3)),
            Step(kind="prefill", rows=(row(run, 0, 5, 0, 512),), replay="none"),
            Step(kind="prefill", rows=(row(run, 0, 5, 512, 490),), replay="none"),
            Step(kind="prefill", rows=(row(run, 0, 5, 1002, 2),), replay="none"),
            Step(kind="decode", rows=(row(run, 0, 0, 1004),), replay="FULL"),
        ],
        "FULL",
    )
    assert list(place(run, steps).step) == [UNKNOWN, 1, 2, 3, 6, 7]


def test_without_steps_rows_are_estimated_from_the_sending_order() -> None:
    run = run_of(3)
    for steps in (None, collect_steps([], "FULL")):
        placement = place(run, steps)
        assert not placement.recorded
        assert [list(placement.row[head.positions]) for head in run.heads] == [
            [UNKNOWN, index, index, index] for index in range(3)
        ]


def named(placement: Placement, steps: StepTable | None, run: RunTable, name: str) -> list[list[int]]:
    mask = strata(placement, steps)[name]
    return [list(np.flatnonzero(mask[head.positions])) for head in run.heads]


def test_strata_follow_from_the_steps() -> None:
    run, steps = two_requests()
    placement = place(run, steps)
    assert named(placement, steps, run, "row 0") == [[1, 2], [1, 3]]
    assert named(placement, steps, run, "rows after row 0") == [[3], [2]]
    assert named(placement, steps, run, "last row of the batch") == [[3], [2]]
    assert named(placement, steps, run, "padded batch") == [[3], [1]]
    assert named(placement, steps, run, "batch of a graph's size") == [[1], [2, 3]]
    assert named(placement, steps, run, "first steps after a prefill") == [[1, 2, 3], [1, 2]]


def test_steps_since_a_prefill() -> None:
    _, steps = two_requests()
    assert list(since_prefill(steps)) == [0, 1, 0, 1, 2, 3]
    decode_only = collect_steps([Step(kind="decode", rows=(), replay="none")] * 3, "FULL")
    assert since_prefill(decode_only).min() > 2


def test_context_strata_split_at_the_documented_edges() -> None:
    run = run_of(12)
    parts = strata(place(run, None), None)
    assert set(parts) == {"row 0", "rows after row 0", "context 0 to 2047", "context 2048 to 16511"}
    low, high = parts["context 0 to 2047"], parts["context 2048 to 16511"]
    assert np.array_equal(low, ~high)
    assert not low[run.heads[11].positions].any()


def test_strata_that_say_nothing_are_left_out() -> None:
    run = run_of(1)
    assert "rows after row 0" not in strata(place(run, None), None)
    assert "context 0 to 2047" not in strata(place(run, None), None)
