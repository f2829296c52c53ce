"""What scenarios demand of their load, beside what the candidate's run of each reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from qualify.compare.coverage.load import ArmLoad, Load
from qualify.compare.coverage.timeline import most_in_flight, warmed_up
from qualify.findings import NOT_MEASURED, SERVER_METRICS, STEP_LOG, TRANSCRIPTS, CoverageCell
from qualify.probe import PREEMPTIONS, PREFIX_HITS, ProbeRecord
from qualify.record import RunRecord, ScenarioExpectation
from qualify.requirements import NOTHING, Requirements
from qualify.runtable import RequestHead
from qualify.transcript import Arm, Decode, RunKey

_HITS = frozenset({"prefix_hits", "prefix_hit_tokens", "prompt_tails"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One requirement of one scenario, and what was reached.

    Attributes:
        kind: Name of the requirement, as in `Requirements`.
        what: What is counted.
        required: What the scenario asks for.
        reached: What was measured.
        satisfied: Whether that is enough.
        how: How it was measured.
    """

    kind: str
    what: str
    required: str
    reached: str
    satisfied: bool
    how: str = STEP_LOG


def demanded(record: RunRecord, arm: ArmLoad | None) -> Iterator[CoverageCell]:
    """One cell for each requirement of each scenario, measured in the candidate's decisive run of it.

    Args:
        record: The run record.
        arm: The candidate's steps beside its transcripts; None where there are none.
    """
    for scenario in record.scenarios:
        if scenario.requires == NOTHING:
            continue
        decode = decisive(scenario)
        load = arm.of(scenario=scenario.name, decode=decode) if arm else None
        run = record.runs.get(RunKey(Arm.CANDIDATE, decode, 1))
        heads = [head for head in run.heads if head.scenario == scenario.name] if run else []
        probes = record.probes.get(Arm.CANDIDATE, ProbeRecord())
        demands = (
            *(_by_steps(scenario.requires, load) if load else _without_steps(scenario, decode, probes)),
            *_by_clock(scenario.requires, heads),
            *_by_metrics(scenario.requires, probes.most_cache_used(scenario.name)),
        )
        for demand in map(_of_this_run(record, decode), demands):
            yield CoverageCell(
                name=demand.what,
                reached=demand.reached,
                required=demand.required,
                satisfied=demand.satisfied,
                how=demand.how,
                scenario=scenario.name,
                kind=demand.kind,
            )


def _of_this_run(record: RunRecord, decode: Decode) -> Callable[[Demand], Demand]:
    """Lets hits count only of a run whose prompts no earlier run can have left in the cache."""
    if record.prefixes_kept.get(RunKey(Arm.CANDIDATE, decode, 1)) == "":
        return lambda demand: demand

    def checked(demand: Demand) -> Demand:
        if demand.kind not in _HITS or not demand.satisfied:
            return demand
        return replace(demand, reached=f"{demand.reached}, perhaps of an earlier run", satisfied=False)

    return checked


def decisive(scenario: ScenarioExpectation) -> Decode:
    """The way of decoding whose runs decide: forced where there is any."""
    return Decode.FORCED if Decode.FORCED in scenario.decode_ways else Decode.FREE


def _without_steps(scenario: ScenarioExpectation, decode: Decode, probes: ProbeRecord) -> Iterator[Demand]:
    """The same where the server recorded no steps: by its counters, where they can tell."""
    counters = {"prefix_hits": PREFIX_HITS, "preemptions": PREEMPTIONS}
    for asked in _by_steps(scenario.requires, _NOWHERE):
        name = counters.get(asked.kind)
        gained = probes.gained(name, scenario.name, decode) if name else None
        if gained is None:
            yield replace(asked, reached=NOT_MEASURED, satisfied=False)
        else:
            needed = max(1, scenario.requires.preemptions if asked.kind == "preemptions" else 1)
            unit = " tokens" if asked.kind == "prefix_hits" else ""
            reached = f"at least {gained}{unit}"
            yield replace(asked, reached=reached, satisfied=gained >= needed, how=SERVER_METRICS)


_NOWHERE = Load(
    rows={},
    graphs={},
    padded=0,
    exact=0,
    widths=None,
    straddling=(),
    prefill_beside=0,
    prefix_hits=(),
    tails=(),
    requests=0,
    preemptions=0,
    identical=0,
    speculating=False,
)


def _by_steps(requires: Requirements, load: Load) -> Iterator[Demand]:
    if requires.rows:
        yield _each("rows", "rows in a decode step", requires.rows, load.rows)
    if requires.padded_rows:
        reached = f"{load.padded} steps" if load.graphs else NOT_MEASURED
        yield Demand(
            kind="padded_rows",
            what="decode steps padded to a larger graph",
            required="at least 1",
            reached=reached,
            satisfied=load.padded > 0,
        )
    if requires.straddled_tokens:
        across = [edge for edge in requires.straddled_tokens if load.straddled(edge)]
        yield _each("straddled_tokens", "contexts on both sides of", requires.straddled_tokens, across)
    if requires.identical_prompts:
        yield _least(
            "identical_prompts",
            "requests with one prompt in a decode step",
            requires.identical_prompts,
            load.identical,
        )
    yield from _asked_of_cache(requires, load)
    if requires.prefill_during_decode:
        yield _least("prefill_during_decode", "steps with a prefill during decode", 1, load.prefill_beside)
    if requires.speculation is not None:
        yield Demand(
            kind="speculation",
            what="speculative decoding",
            required="seen" if requires.speculation else "none",
            reached="seen" if load.speculating else "none seen",
            satisfied=load.speculating is requires.speculation,
        )


def _asked_of_cache(requires: Requirements, load: Load) -> Iterator[Demand]:
    longest = max(load.prefix_hits, default=0)
    if requires.prefix_hits:
        hits = len(load.prefix_hits)
        # a run without any hit says nothing of what follows a hit, however clean it is
        yield _least("prefix_hits", "prompts found in the prefix cache", 1, hits)
    if requires.prefix_hit_tokens:
        yield _least(
            "prefix_hit_tokens",
            "tokens of one prompt found in the prefix cache",
            requires.prefix_hit_tokens,
            longest,
        )
    if requires.prompt_tails:
        yield _each(
            "prompt_tails", "prompt tokens left after a prefix hit", requires.prompt_tails, load.tails
        )
    if requires.preemptions:
        yield _least("preemptions", "preemptions", requires.preemptions, load.preemptions)


def _by_clock(requires: Requirements, heads: list[RequestHead]) -> Iterator[Demand]:
    if requires.in_flight:
        yield _least(
            "in_flight",
            "requests in flight at one time",
            requires.in_flight,
            most_in_flight(heads),
            TRANSCRIPTS,
        )
    if requires.warmup_requests:
        yield _least(
            "warmup_requests",
            "requests before the first judged one",
            requires.warmup_requests,
            warmed_up(heads),
            TRANSCRIPTS,
        )
    if requires.decoded_tokens:
        longest = max((head.length for head in heads if head.judged), default=0)
        yield _least(
            "decoded_tokens",
            "tokens generated by one judged request",
            requires.decoded_tokens,
            longest,
            TRANSCRIPTS,
        )


def _by_metrics(requires: Requirements, share: float | None) -> Iterator[Demand]:
    if requires.kv_cache_share:
        yield Demand(
            kind="kv_cache_share",
            what="share of the KV cache in use",
            required=f"at least {requires.kv_cache_share:.0%}",
            reached=NOT_MEASURED if share is None else f"at most {share:.1%}",
            satisfied=share is not None and share >= requires.kv_cache_share,
            how=SERVER_METRICS,
        )


def _least(kind: str, what: str, required: int, reached: int, how: str = STEP_LOG) -> Demand:
    return Demand(
        kind=kind,
        what=what,
        required=f"at least {required}",
        reached=str(reached),
        satisfied=reached >= required,
        how=how,
    )


def _each(kind: str, what: str, wanted: Iterable[int], seen: Iterable[int]) -> Demand:
    return Demand(
        kind=kind,
        what=what,
        required=", ".join(map(str, wanted)),
        reached=", ".join(map(str, sorted(set(seen)))) or "none",
        satisfied=set(wanted) <= set(seen),
    )
