from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from qualify.compare.inspect import equal_tokens, ranges
from qualify.compare.pairing import align
from qualify.runtable import NO_TOKEN, RunTable, collect, reduce_requests
from qualify.transcript import MINUS_INFINITY, Arm, Decode, RunKey, Transcript
from tests.judgefactory import World, no_fault, transcript

WORLD = World(scenarios={"some": 3}, tokens=6)
KEYS = [RunKey(Arm.BASELINE, Decode.FREE, 1), RunKey(Arm.BASELINE, Decode.FREE, 2)]
SUBJECT = RunKey(Arm.CANDIDATE, Decode.FREE, 1)


def items(key: RunKey) -> list[Transcript]:
    return [transcript(WORLD, key, "some", index, no_fault) for index in range(3)]


def split(item: Transcript, at: int) -> Transcript:
    """The same with another token at a position."""
    tokens = list(item.token_ids)
    tokens[at] = 99
    return replace(item, token_ids=tuple(tokens))


def test_free_runs_are_compared_up_to_and_including_the_split() -> None:
    mine = items(SUBJECT)
    mine[1] = split(mine[1], 2)
    runs = [collect(key, items(key)) for key in KEYS] + [collect(SUBJECT, mine)]
    aligned = align(runs, [head.request_id for head in runs[0].heads])
    layout = aligned.layout
    assert list(layout.starts) == [0, 6, 12, 18]
    floor, left, right = (layout.distances[6:12, column] for column in range(3))
    assert not np.isnan(floor).any()
    for column in (left, right):
        assert list(np.isnan(column)) == [False, False, False, True, True, True]
    assert list(aligned.own[6:12]) == list(range(6, 12))


def test_shorter_answers_end_the_comparison() -> None:
    mine = items(SUBJECT)
    mine[2] = replace(
        mine[2],
        token_ids=mine[2].token_ids[:2],
        logprobs=mine[2].logprobs[:2],
        top_ids=mine[2].top_ids[:2],
        top_logprobs=mine[2].top_logprobs[:2],
    )
    runs = [collect(key, items(key)) for key in KEYS] + [collect(SUBJECT, mine)]
    aligned = align(runs, [head.request_id for head in runs[0].heads])
    assert int((~np.isnan(aligned.layout.distances[12:, 1])).sum()) == 2
    assert list(aligned.own[12:]) == [12, 13, -1, -1, -1, -1]


def test_floor_of_an_earlier_alignment_is_the_same_floor() -> None:
    runs = [collect(key, items(key)) for key in KEYS]
    candidate, control = (
        collect(SUBJECT, items(SUBJECT)),
        collect(KEYS[0], items(RunKey(Arm.CONTROL, Decode.FREE, 1))),
    )
    names = [head.request_id for head in runs[0].heads]
    earlier = align([*runs, candidate], names)
    again, fresh = align([*runs, control], names, earlier), align([*runs, control], names)
    assert np.array_equal(again.layout.distances, fresh.layout.distances)
    assert astuple(again.floor) == astuple(fresh.floor)
    fewer = align([*runs, control], names[:2], earlier)
    assert len(fewer.layout.distances) == 12


def test_agreement_of_equal_and_of_changed_tokens() -> None:
    runs = [collect(key, items(KEYS[0])) for key in (*KEYS, SUBJECT)]
    names = [head.request_id for head in runs[0].heads]
    same = align(runs, names).subject
    assert (same.same_top, same.same_rank, same.delta_mean, same.delta_largest) == (1.0, 1.0, 0.0, 0.0)
    swapped = runs[2].top_ids.copy()
    swapped[4, :2] = swapped[4, 1::-1]
    logprobs = runs[2].logprobs.copy()
    logprobs[4] -= 0.5
    changed = align([*runs[:2], replace(runs[2], top_ids=swapped, logprobs=logprobs)], names).subject
    assert changed.same_top == pytest.approx(17 / 18)
    assert changed.same_rank == pytest.approx(17 / 18)
    assert changed.delta_mean == pytest.approx(0.5 / 18, rel=1e-5)
    assert changed.delta_largest == pytest.approx(0.5, rel=1e-5)


def test_emitted_token_that_is_not_listed_has_no_rank() -> None:
    runs = [collect(key, items(KEYS[0])) for key in (*KEYS, SUBJECT)]
    unlisted = runs[2].top_ids.copy()
    unlisted[4, 0] = 1000
    changed = align(
        [*runs[:2], replace(runs[2], top_ids=unlisted)], [head.request_id for head in runs[0].heads]
    )
    assert changed.subject.same_rank == pytest.approx(17 / 18)


def test_common_tokens_are_counted_wherever_the_answers_lie() -> None:
    one = collect(KEYS[0], items(KEYS[0]))
    other_items = items(KEYS[1])
    other_items[0] = split(other_items[0], 0)
    other_items[2] = split(other_items[2], 5)
    other = collect(KEYS[1], other_items[::-1])
    assert list(equal_tokens(one, one.heads, other, other.heads)) == [0, 6, 5]
    assert list(equal_tokens(one, [], other, [])) == []
    assert list(ranges([10, 0, 5], np.array([2, 0, 3]))) == [10, 11, 5, 6, 7]


# --- runs as arrays


def test_collecting_keeps_what_a_transcript_says() -> None:
    given = items(KEYS[0])
    run = collect(KEYS[0], given[::-1])
    assert [head.request_id for head in run.heads] == [item.request_id for item in given]
    for head, item in zip(run.heads, given, strict=True):
        assert tuple(run.token_ids[head.positions]) == item.token_ids
        assert np.array_equal(run.top_ids[head.positions], np.array(item.top_ids))
        assert np.allclose(run.top_logprobs[head.positions], np.array(item.top_logprobs), rtol=1e-6)
        assert head.complete
        assert (head.context_tokens, head.forced_sha256) == (item.context_tokens, item.forced_sha256)


def test_nan_missing_and_minus_infinity_stay_visible() -> None:
    item = items(KEYS[0])[0]
    top = list(item.top_logprobs)
    top[1] = (None, *top[1][1:])
    top[2] = (MINUS_INFINITY, *top[2][1:])
    run = collect(KEYS[0], [replace(item, logprobs=(None, *item.logprobs[1:]), top_logprobs=tuple(top))])
    assert np.isnan(run.logprobs[0])
    assert np.isnan(run.top_logprobs[1, 0])
    assert run.top_logprobs[2, 0] == -np.inf


def test_lists_of_different_length_are_padded() -> None:
    narrow, wide, ragged = items(KEYS[0])
    narrow = replace(
        narrow,
        top_ids=tuple(ids[:3] for ids in narrow.top_ids),
        top_logprobs=tuple(values[:3] for values in narrow.top_logprobs),
    )
    ragged = replace(
        ragged,
        top_ids=(ragged.top_ids[0][:1], *ragged.top_ids[1:]),
        top_logprobs=(ragged.top_logprobs[0][:1], *ragged.top_logprobs[1:]),
    )
    run = collect(KEYS[0], [narrow, wide, ragged])
    assert run.top_ids.shape == (18, 20)
    assert tuple(run.top_ids[0, :3]) == narrow.top_ids[0]
    assert (run.top_ids[:6, 3:] == NO_TOKEN).all()
    assert np.isnan(run.top_logprobs[:6, 3:]).all()
    assert tuple(run.top_ids[12]) == (ragged.top_ids[0][0], *[NO_TOKEN] * 19)
    assert tuple(run.top_ids[11]) == wide.top_ids[5]


def test_answer_without_logprobs_is_incomplete_and_does_not_shift_the_others() -> None:
    first, second, third = items(KEYS[0])
    bare = replace(second, logprobs=(), top_ids=(), top_logprobs=())
    cut = replace(third, top_ids=third.top_ids[:4], top_logprobs=third.top_logprobs[:4])
    run = collect(KEYS[0], [first, bare, cut])
    assert [head.complete for head in run.heads] == [True, False, False]
    assert (run.top_ids[6:12] == NO_TOKEN).all()
    assert tuple(run.top_ids[12]) == third.top_ids[0]
    assert (run.top_ids[16:] == NO_TOKEN).all()


def test_duplicates_are_remembered_and_the_first_kept() -> None:
    first, second, _ = items(KEYS[0])
    run = collect(KEYS[0], [first, second, replace(first, token_ids=second.token_ids)])
    assert run.duplicates == (first.request_id,)
    assert tuple(run.token_ids[run.heads[0].positions]) == first.token_ids


def test_run_without_transcripts_is_empty() -> None:
    run = collect(KEYS[0], [])
    assert (len(run.heads), run.top_ids.shape) == (0, (0, 0))


def test_reduction_by_request_does_not_mix_requests() -> None:
    given = items(KEYS[0])
    given[1] = replace(given[1], token_ids=(), logprobs=(), top_ids=(), top_logprobs=())
    run: RunTable = collect(KEYS[0], given)
    values = np.arange(12)
    assert list(reduce_requests(values, run.heads, np.add, -1)) == [15, -1, 51]
    assert list(reduce_requests(values, [run.heads[2]], np.maximum, -1)) == [11]
    assert list(reduce_requests(values, [], np.add, -1)) == []
