"""What must hold of every verdict, whatever the runs are."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qualify.findings import Result, Verdict
from qualify.gate import judge
from qualify.record import ExpectedRequest, RunRecord
from qualify.runtable import RunTable
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import POLICY, World, build, no_fault, packed, transcript

SLOW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

worlds = st.builds(
    World,
    scenarios=st.sampled_from([{"eight": 8}, {"eight": 8, "twelve": 12}]),
    tokens=st.sampled_from([6, 12]),
    noise=st.sampled_from([0.0, 0.02, 0.2, 1.0]),
    seed=st.integers(0, 10_000),
)
strengths = st.sampled_from([0.0, 0.1, 0.3, 1.0, 3.0])


def weak(strength: float):  # type: ignore[no-untyped-def]
    return lambda row, token: strength if row > 0 and token > 0 else 0.0


def verdict_of(record: RunRecord) -> Verdict:
    return judge(record, POLICY, "0" * 64)


def encoded(record: RunRecord) -> bytes:
    return msgspec.json.encode(verdict_of(record), order="sorted")


@SLOW
@given(worlds, strengths)
def test_swapping_the_baseline_runs_changes_nothing(world: World, strength: float) -> None:
    record = build(world, candidate=weak(strength))
    keys = [RunKey(Arm.BASELINE, Decode.FORCED, number) for number in (1, 2)]
    first, second = (record.runs[key] for key in keys)
    swapped = {
        **record.runs,
        keys[0]: replace(second, key=keys[0]),
        keys[1]: replace(first, key=keys[1]),
    }
    assert encoded(replace(record, runs=swapped)) == encoded(record)


@SLOW
@given(worlds, strengths, st.randoms(use_true_random=False))
def test_shuffling_requests_changes_nothing(world: World, strength: float, random) -> None:  # type: ignore[no-untyped-def]
    fault = weak(strength)
    record = build(world, candidate=fault)
    shuffled = build(world, candidate=fault, order=lambda items: random.sample(items, len(items)))
    assert encoded(shuffled) == encoded(record)


def with_identical(record: RunRecord, world: World, count: int) -> RunRecord:
    """Adds requests that every arm answers alike, to the last bit."""
    silent = replace(world, noise=0.0, seed=world.seed + 1, scenarios={"same": count})
    runs: dict[RunKey, RunTable] = {}
    for key, run in record.runs.items():
        extra = [transcript(silent, key, "same", index, no_fault) for index in range(count)]
        runs[key] = _joined(run, build_table(key, extra))
    expected = tuple(
        ExpectedRequest(
            request_id=f"same/main/{index:04d}",
            scenario="same",
            judged=True,
            context_tokens=1000 + 100 * index,
            max_tokens=world.tokens,
            prompt_sha256=f"prompt of same/main/{index:04d}",
        )
        for index in range(count)
    )
    scenario = replace(record.scenarios[0], name="same", control_can_act=False, requests=expected)
    return replace(record, runs=runs, scenarios=(*record.scenarios, scenario))


def build_table(key: RunKey, items: list) -> RunTable:  # type: ignore[type-arg]
    from qualify.runtable import collect

    return collect(key, items)


def _joined(one: RunTable, other: RunTable) -> RunTable:
    offset = len(one.token_ids)
    moved = tuple(replace(head, start=head.start + offset) for head in other.heads)
    return replace(
        one,
        heads=tuple(sorted((*one.heads, *moved), key=lambda head: head.request_id)),
        token_ids=np.concatenate([one.token_ids, other.token_ids]),
        logprobs=np.concatenate([one.logprobs, other.logprobs]),
        top_ids=np.concatenate([one.top_ids, other.top_ids]),
        top_logprobs=np.concatenate([one.top_logprobs, other.top_logprobs]),
    )


@SLOW
@given(worlds, st.sampled_from([0.0, 0.05, 0.1, 0.3]), st.integers(1, 12))
def test_adding_identical_requests_never_turns_a_pass_into_a_rejection(
    world: World, strength: float, count: int
) -> None:
    record = build(world, candidate=weak(strength))
    before = verdict_of(record).result
    after = verdict_of(with_identical(record, world, count)).result
    assert after is not Result.REJECTED or before is Result.REJECTED


@SLOW
@given(worlds, st.sampled_from([0.05, 0.1, 0.3, 1.0]), st.sampled_from([1.5, 3.0, 10.0]))
def test_a_dominating_fault_is_never_less_suspicious(world: World, strength: float, more: float) -> None:
    """The same disturbance, larger: what was rejected stays rejected, and the control's margin grows."""
    less_bad = verdict_of(build(world, candidate=weak(strength)))
    worse = verdict_of(build(world, candidate=weak(strength * more)))
    assert worse.result is Result.REJECTED or less_bad.result is not Result.REJECTED


@SLOW
@given(worlds)
def test_a_clear_fault_is_always_rejected_and_a_right_candidate_never(world: World) -> None:
    assert verdict_of(build(world)).result is not Result.REJECTED
    if world.noise < 1:
        assert verdict_of(build(world, candidate=weak(5.0), control=packed)).result is Result.REJECTED
