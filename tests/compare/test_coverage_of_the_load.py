"""What engine steps show of the load, and what scenarios demand of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from qualify.compare import coverage
from qualify.compare.coverage.limits import limitations
from qualify.compare.coverage.load import Load, arm_load
from qualify.compare.coverage.timeline import most_in_flight, warmed_up
from qualify.findings import NOT_MEASURED, CoverageCell, Weight
from qualify.gate import judge
from qualify.policy import CoveragePolicy
from qualify.probe import CACHE_USED, PREEMPTIONS, PREFIX_HITS, ProbeRecord, Sample
from qualify.record import RunRecord, Step, StepRow
from qualify.requirements import Requirements
from qualify.steps import collect_steps
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import POLICY, World, build

WORLD = World(scenarios={"eight": 8}, tokens=6)
FORCED = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)
Rows = Sequence[tuple[int, int, int]]
"""(request, tokens computed before the step, tokens of the step) for each row."""


def step(rows: Rows, *, replay: str = "FULL", padded: int | None = None, kind: str = "decode") -> Step:
    return Step(
        kind=kind,
        replay=replay,
        padded_rows=padded,
        rows=tuple(
            StepRow(server_request_id=ids()[request], row=row, computed_tokens=before, scheduled_tokens=count)
            for row, (request, before, count) in enumerate(rows)
        ),
    )


def ids() -> list[str]:
    return [head.server_request_id for head in build(WORLD).runs[FORCED].heads]


def served(*steps: Step) -> RunRecord:
    """A run whose candidate has just these steps; its prompts have 1000, 1100, ... tokens."""
    record = build(WORLD)
    return replace(record, steps={**record.steps, Arm.CANDIDATE: collect_steps(steps, "FULL")})


def load(*steps: Step) -> Load:
    arm = arm_load(served(*steps), Arm.CANDIDATE)
    assert arm is not None
    return arm.of(scenario="eight", decode=Decode.FORCED)


def test_rows_padding_and_graphs_are_counted() -> None:
    found = load(
        step([(0, 1000, 1), (1, 1100, 1), (2, 1200, 1)], padded=4),
        step([(0, 1001, 1), (1, 1101, 1)], padded=2),
        step([(0, 1002, 1)], replay="PIECEWISE CUDA graph replay", padded=1),
    )
    assert found.rows == {1: 1, 2: 1, 3: 1}
    assert found.graphs == {2: 1, 4: 1}
    assert (found.padded, found.exact) == (1, 1)


@pytest.mark.parametrize(("context", "width"), [(16511, 128), (16512, 256), (32896, 256)])
def test_active_width_is_a_bucket_of_the_longest_context(context: int, width: int) -> None:
    assert load(step([(0, 1000, 1), (1, context - 1, 1)])).widths == {width: 1}


def test_contexts_on_both_sides_must_be_alive_together() -> None:
    apart = load(step([(0, 1000, 1)]), step([(1, 20000, 1)]))
    assert not apart.straddled(16512)
    beside = load(step([(0, 16511, 1), (1, 16512, 1)]))
    assert beside.straddled(16512)
    assert not beside.straddled(16511)


def test_a_prefix_hit_is_what_the_first_step_found() -> None:
    found = load(
        step([(0, 0, 1000), (1, 1088, 12)], kind="prefill"),
        step([(0, 1000, 1), (1, 1100, 1)]),
    )
    assert found.prefix_hits == (1088,)
    assert found.tails == (12,)


def test_a_request_computed_again_was_preempted() -> None:
    on = [step([(0, 1000, 1)]), step([(0, 1001, 1)]), step([(0, 1002, 1)])]
    assert load(*on).preemptions == 0
    assert load(*on, step([(0, 0, 1003)], kind="prefill"), step([(0, 1003, 1)])).preemptions == 1


def test_a_prompt_beside_a_decode_is_seen_and_prompts_alone_are_not() -> None:
    assert load(step([(0, 0, 1000), (1, 0, 1100)], kind="prefill")).prefill_beside == 0
    assert load(step([(0, 1000, 1), (1, 512, 588)], kind="mixed")).prefill_beside == 1


def test_drafts_that_are_verified_are_several_tokens_of_a_row_that_decodes() -> None:
    assert load(step([(0, 1000, 4)])).speculating
    assert not load(step([(0, 0, 1000)], kind="prefill"), step([(0, 1000, 1)])).speculating


def test_other_runs_and_scenarios_do_not_count() -> None:
    record = build(WORLD)
    arm = arm_load(record, Arm.CANDIDATE)
    assert arm is not None
    assert arm.of(scenario="eight", decode=Decode.FREE).requests == 8
    assert arm.of(scenario="another").rows == {}
    assert arm.of().requests == 16


def test_clock_of_the_client() -> None:
    heads = build(WORLD).runs[FORCED].heads[:3]
    timed = [
        replace(head, sent_s=sent, finished_s=end, judged=judged)
        for head, (sent, end, judged) in zip(
            heads, [(0.0, 2.0, False), (1.0, 3.0, False), (2.0, 4.0, True)], strict=True
        )
    ]
    assert most_in_flight(timed) == 2
    assert warmed_up(timed) == 1


PLENTY = [
    step([(0, 0, 1000), (1, 1088, 12)], kind="prefill"),
    step([(0, 1000, 1), (1, 1100, 1), (2, 100, 1100)], kind="mixed"),
    step([(0, 1001, 4), (1, 1101, 1), (2, 1200, 1)], padded=4),
    step([(0, 0, 1003)], kind="prefill"),
]


def demand(requires: Requirements, *steps: Step, policy: CoveragePolicy | None = None) -> list[CoverageCell]:
    record = asking(requires, served(*steps))
    return [cell for cell in coverage.measure(record, policy or CoveragePolicy(), 48) if cell.kind]


def asking(requires: Requirements, record: RunRecord) -> RunRecord:
    scenarios = (replace(record.scenarios[0], requires=requires),)
    return replace(record, scenarios=scenarios, prefixes_kept={FORCED: ""})


@pytest.mark.parametrize(
    ("met", "missed"),
    [
        (Requirements(rows=(3,)), Requirements(rows=(3, 5))),
        (Requirements(padded_rows=True), None),
        (Requirements(straddled_tokens=(1100,)), Requirements(straddled_tokens=(1100, 1500))),
        (Requirements(identical_prompts=1), Requirements(identical_prompts=2)),
        (Requirements(decoded_tokens=6), Requirements(decoded_tokens=7)),
        (Requirements(prefix_hits=True), None),
        (Requirements(prefix_hit_tokens=1088), Requirements(prefix_hit_tokens=1089)),
        (Requirements(prompt_tails=(12,)), Requirements(prompt_tails=(12, 13))),
        (Requirements(preemptions=1), Requirements(preemptions=2)),
        (Requirements(prefill_during_decode=True), None),
        (Requirements(speculation=True), Requirements(speculation=False)),
    ],
)
def test_each_demand_is_met_by_measurement_alone(met: Requirements, missed: Requirements | None) -> None:
    assert [cell.satisfied for cell in demand(met, *PLENTY)] == [True]
    few = demand(missed, *PLENTY) if missed else demand(met, step([(0, 1000, 1), (1, 1100, 1)], padded=2))
    assert [cell.satisfied for cell in few] == [False]
    if "decoded_tokens" not in {cell.kind for cell in few}:
        none = coverage.measure(asking(met, replace(served(), steps={})), CoveragePolicy(), 1)
        assert [cell.reached for cell in none if cell.kind] == [NOT_MEASURED]


def test_share_of_the_cache_comes_from_the_servers_metrics() -> None:
    sample = Sample(
        time_s=1, run=str(FORCED), scenario="eight", in_flight=8, answered=True, values={CACHE_USED: 0.85}
    )
    record = asking(Requirements(kv_cache_share=0.8), build(WORLD))
    seen = replace(record, probes={Arm.CANDIDATE: ProbeRecord(samples=(sample,))})
    for subject, satisfied in ((record, False), (seen, True)):
        (cell,) = [cell for cell in coverage.measure(subject, CoveragePolicy(), 48) if cell.kind]
        assert cell.satisfied is satisfied


@pytest.mark.parametrize(
    ("requires", "name", "met", "missed"),
    [
        (Requirements(prefix_hits=True), PREFIX_HITS, 64, 0),
        (Requirements(preemptions=2), PREEMPTIONS, 2, 1),
    ],
)
def test_without_a_step_log_the_servers_counters_tell(
    requires: Requirements, name: str, met: int, missed: int
) -> None:
    def counted(gained: int, run: RunKey = FORCED, scenario: str = "eight") -> list[bool | None]:
        samples = tuple(
            Sample(
                time_s=at,
                run=str(run),
                scenario=scenario,
                in_flight=1,
                answered=True,
                values={name: 7.0 + more},
            )
            for at, more in ((0.0, 0), (1.0, gained))
        )
        record = replace(
            asking(requires, served()), steps={}, probes={Arm.CANDIDATE: ProbeRecord(samples=samples)}
        )
        return [cell.satisfied for cell in coverage.measure(record, CoveragePolicy(), 48) if cell.kind]

    assert counted(met) == [True]
    assert counted(missed) == [False]
    assert counted(met, scenario="another") == [False]
    assert counted(met, run=RunKey(Arm.CANDIDATE, Decode.FREE, 1)) == [False]


@pytest.mark.parametrize("kept", [{}, {FORCED: "POST /reset_prefix_cache was answered with 404"}])
@pytest.mark.parametrize(
    "requires",
    [Requirements(prefix_hits=True), Requirements(prefix_hit_tokens=1088), Requirements(prompt_tails=(12,))],
)
def test_hits_count_only_where_the_cache_was_emptied_before(
    requires: Requirements, kept: dict[RunKey, str]
) -> None:
    record = replace(asking(requires, served(*PLENTY)), prefixes_kept=kept)
    (cell,) = [cell for cell in coverage.measure(record, CoveragePolicy(), 48) if cell.kind]
    assert cell.satisfied is False
    assert "perhaps of an earlier run" in cell.reached
    said = [text for text in limitations(record, ()) if "not emptied before candidate.forced.run1" in text]
    assert len(said) == len(kept)


def test_a_prefix_scenario_without_a_hit_leaves_the_run_inconclusive() -> None:
    record = asking(Requirements(prefix_hits=True), build(WORLD))
    assert judge(build(WORLD), POLICY, "").result == "qualified"
    verdict = judge(record, POLICY, "")
    assert verdict.result == "inconclusive"
    (finding,) = [item for item in verdict.findings if item.rule == "coverage"]
    assert finding.scenario == "eight"
    lenient = POLICY.model_copy(update={"coverage": CoveragePolicy(limitations_only=("prefix_hits",))})
    verdict = judge(record, lenient, "")
    assert verdict.result == "qualified"
    assert any("prefix cache in scenario eight: 0" in text for text in verdict.limitations)
    assert [item.weight for item in verdict.findings if item.rule == "coverage"] == [Weight.NOTE]


@pytest.mark.parametrize(
    ("policy", "enough"),
    [
        (CoveragePolicy(active_widths=(128,)), True),
        (CoveragePolicy(active_widths=(128, 256)), False),
        (CoveragePolicy(graph_rows=(4,)), True),
        (CoveragePolicy(graph_rows=(4, 8)), False),
    ],
)
def test_policy_asks_for_widths_and_graphs(policy: CoveragePolicy, enough: bool) -> None:
    short = coverage.shortfalls(coverage.measure(served(*PLENTY), policy, 48), policy)
    about = [item for item in short if "active widths" in item.summary or "graphs" in item.summary]
    assert (not about) is enough
    none = coverage.measure(replace(served(), steps={}), policy, 48)
    assert (
        sum(cell.satisfied is False for cell in none) == 3 + 1
    )  # what every policy asks of the steps, and this one's own


def test_the_policy_knows_every_demand() -> None:
    for field in fields(Requirements):
        CoveragePolicy.model_validate({"limitations_only": (field.name,)})
