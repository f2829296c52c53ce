"""Graph evidence counts where it is that of the judged answers; probes that left nothing are said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from qualify.findings import NOT_MEASURED, CoverageCell, Result, Verdict, Weight
from qualify.gate import judge
from qualify.policy import CoveragePolicy
from qualify.probe import LogSigns, ProbeRecord, Sample
from qualify.ranksteps import RankSteps
from qualify.record import AS_RECORDED, ArmState, GraphCounts, ResolvedConfiguration, RunRecord
from qualify.release import FULL_GRAPHS
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import POLICY, World, build, with_arm

WORLD = World(scenarios={"eight": 8, "sixteen": 16}, tokens=12)
DECISIVE = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)
IN_LOG = "judged tokens of the {} whose step was recorded"
REPLAYED = "judged tokens of the candidate that a replay computed"
PER_STEP = ("decode", "replayed", "whole", "rows", "padded_rows")
Change = Callable[[StepTable], StepTable]


@pytest.fixture(scope="module")
def good() -> RunRecord:
    return build(WORLD)


def verdict_of(record: RunRecord) -> Verdict:
    return judge(record, POLICY, "0" * 64)


def cell(verdict: Verdict, name: str) -> CoverageCell:
    (found,) = [cell for cell in verdict.coverage if cell.name == name]
    return found


def with_steps(record: RunRecord, arm: Arm, change: Change) -> RunRecord:
    return replace(record, steps={**record.steps, arm: change(record.steps[arm])})


def steps_of(steps: StepTable, *marks: str) -> np.ndarray:
    """Bool [S], steps with a request whose id has all the marks in it."""
    ours = [all(mark in name for mark in marks) for name in steps.server_request_ids]
    found = np.zeros(len(steps.decode), dtype=bool)
    found[steps.step[np.array(ours)[steps.request]]] = True
    return found


def only(steps: StepTable, kept: np.ndarray) -> StepTable:
    """The table without the other steps."""
    rows = kept[steps.step]
    number = np.cumsum(kept) - 1
    return replace(
        steps,
        **{
            name: getattr(steps, name)[kept]
            for name in ("decode", "replayed", "whole", "rows", "padded_rows")
        },
        **{name: getattr(steps, name)[rows] for name in ("request", "row", "computed", "reached")},
        step=number[steps.step[rows]].astype(np.int32),
    )


def free_only(steps: StepTable) -> StepTable:
    return only(steps, steps_of(steps, ".free."))


def without_eight(steps: StepTable) -> StepTable:
    return only(steps, ~steps_of(steps, "eight/", ".forced."))


def first_half(steps: StepTable) -> StepTable:
    return only(steps, np.arange(len(steps.decode)) < len(steps.decode) * 3 // 4)


def renamed(steps: StepTable) -> StepTable:
    names = tuple(name.replace("candidate", "control") for name in steps.server_request_ids)
    return replace(steps, server_request_ids=names)


def nameless(steps: StepTable) -> StepTable:
    none = np.zeros(0, dtype=np.int32)
    return replace(
        steps, step=none, request=none, row=none, computed=none, reached=none, server_request_ids=()
    )


def test_all_tokens_of_right_servers_are_in_their_logs(good: RunRecord) -> None:
    verdict = verdict_of(good)
    assert verdict.result is Result.QUALIFIED
    assert cell(verdict, IN_LOG.format("candidate")).reached == "264 of 264"
    assert cell(verdict, IN_LOG.format("baseline")).reached == "528 of 528"
    assert cell(verdict, REPLAYED).reached == "264 of 264 (100.0%), fewest in eight (100.0%)"


@pytest.mark.parametrize("change", [free_only, without_eight, first_half, renamed, nameless])
@pytest.mark.parametrize("arm", [Arm.CANDIDATE, Arm.BASELINE])
def test_a_log_that_is_not_of_the_judged_answers_is_no_evidence(
    good: RunRecord, change: Change, arm: Arm
) -> None:
    def changed(steps: StepTable) -> StepTable:
        return renamed_baseline(steps) if change is renamed and arm is Arm.BASELINE else change(steps)

    verdict = verdict_of(with_steps(good, arm, changed))
    assert verdict.result is Result.INCONCLUSIVE
    assert cell(verdict, IN_LOG.format(arm)).satisfied is False


def renamed_baseline(steps: StepTable) -> StepTable:
    names = tuple(name.replace("baseline", "candidate") for name in steps.server_request_ids)
    return replace(steps, server_request_ids=names)


def test_scenarios_that_lack_steps_are_named(good: RunRecord) -> None:
    reached = cell(
        verdict_of(with_steps(good, Arm.CANDIDATE, without_eight)), IN_LOG.format("candidate")
    ).reached
    assert reached == "176 of 264, not all in eight"


def test_decode_steps_of_one_scenario_that_were_not_replayed_do_not_hide_among_the_others(
    good: RunRecord,
) -> None:
    def eager(steps: StepTable) -> StepTable:
        whole = steps.whole.copy()
        whole[np.flatnonzero(steps_of(steps, "eight/", ".forced."))[:2]] = False
        return replace(steps, whole=whole, replayed=whole)

    lenient = POLICY.model_copy(update={"coverage": CoveragePolicy(replay_share=0.9)})
    record = with_steps(good, Arm.CANDIDATE, eager)
    verdict = judge(record, lenient, "0" * 64)
    assert verdict.result is Result.INCONCLUSIVE
    found = cell(verdict, "decode steps of the candidate that were replays")
    assert (
        found.reached == "42 of 44 (95.5%); in eight they computed 72 of 88 judged tokens"
    )  # 82% in eight, 95% over all
    assert found.satisfied is False


@pytest.mark.parametrize(("mixed", "result"), [(8, Result.QUALIFIED), (9, Result.INCONCLUSIVE)])
def test_prefills_beside_decodes_are_legitimate_until_hardly_a_token_is_replayed(
    good: RunRecord, mixed: int, result: Result
) -> None:
    """11 steps decode what is judged of "eight": 3 of them must be replays, the rest may compute prompts."""

    def beside(steps: StepTable) -> StepTable:
        at = np.flatnonzero(steps_of(steps, "eight/", ".forced."))[:mixed]
        whole, decode = steps.whole.copy(), steps.decode.copy()
        whole[at] = decode[at] = False
        return replace(steps, whole=whole, replayed=whole, decode=decode)

    record = with_steps(good, Arm.CANDIDATE, beside)
    verdict = verdict_of(record)
    assert verdict.result is result
    assert f"fewest in eight ({(11 - mixed) / 11:.1%})" in cell(verdict, REPLAYED).reached
    nowhere = tuple(replace(scenario, control_can_act=False) for scenario in record.scenarios)
    assert cell(verdict_of(replace(record, scenarios=nowhere)), REPLAYED).satisfied is None


def test_answers_copied_from_another_run_are_noticed(good: RunRecord) -> None:
    copied = replace(good.runs[RunKey(Arm.BASELINE, Decode.FORCED, 1)], key=DECISIVE)
    verdict = verdict_of(replace(good, runs={**good.runs, DECISIVE: copied}))
    assert verdict.result is Result.INCONCLUSIVE
    (found,) = [item for item in verdict.findings if item.rule == "shared-answers"]
    assert (found.arm, len(found.request_ids)) == (Arm.CANDIDATE, 24)


def test_a_torn_step_log_is_told(good: RunRecord) -> None:
    verdict = verdict_of(replace(good, torn=frozenset({Arm.CANDIDATE})))
    assert verdict.result is Result.QUALIFIED  # every judged token's step is there
    (found,) = [item for item in verdict.findings if item.rule == "step-log"]
    assert found.weight is Weight.NOTE


def test_counted_steps_of_files_made_elsewhere_are_a_limitation(good: RunRecord) -> None:
    record = replace(with_steps(good, Arm.CANDIDATE, nameless), replay=AS_RECORDED)
    verdict = verdict_of(record)
    assert verdict.result is Result.QUALIFIED
    assert "Judged tokens of the candidate whose step was recorded: not measured." in verdict.limitations


def graphs(record: RunRecord, mode: str, *counted: tuple[str, int, int]) -> RunRecord:
    both = {
        Arm.CANDIDATE: GraphCounts(mode=mode, captured=(8,), steps=counted),
        Arm.BASELINE: GraphCounts(mode="NONE", captured=(), steps=(("NONE", 8, 60),)),
    }
    return replace(record, replay=FULL_GRAPHS, graphs=both)


@pytest.mark.parametrize(
    ("mode", "counted", "result"),
    [
        ("FULL_DECODE_ONLY", [("FULL", 8, 3), ("NONE", 900, 9)], Result.QUALIFIED),
        ("FULL_DECODE_ONLY", [], Result.QUALIFIED),  # stopped before its first table
        ("FULL_DECODE_ONLY", [("NONE", 900, 1)], Result.INCONCLUSIVE),  # all steps of the log are replays
        ("NONE", [("NONE", 8, 60)], Result.INCONCLUSIVE),
        ("PIECEWISE", [], Result.INCONCLUSIVE),
    ],
)
def test_the_servers_own_table_may_not_contradict_the_step_log(
    good: RunRecord, mode: str, counted: list[tuple[str, int, int]], result: Result
) -> None:
    verdict = verdict_of(graphs(good, mode, *counted))
    assert verdict.result is result, verdict.reasons


def test_a_table_that_only_the_candidate_lacks_is_a_limitation(good: RunRecord) -> None:
    record = graphs(good, "FULL", ("FULL", 8, 3))
    verdict = verdict_of(replace(record, graphs={Arm.BASELINE: record.graphs[Arm.BASELINE]}))
    assert "Steps of the candidate as its server counted them: not measured." in verdict.limitations


def ranks(looked_decode: int, looked: int) -> tuple[RankSteps, ...]:
    rank = RankSteps(
        rank=0,
        steps=50,
        replayed=44,
        decode=44,
        whole=44,
        other="",
        looked=looked,
        looked_decode=looked_decode,
        wrong=0,
        wrong_rows=(),
        disagreed=0,
    )
    return (replace(rank, looked=47, looked_decode=44), replace(rank, rank=1))


@pytest.mark.parametrize(
    ("looked_decode", "looked", "said", "result"),
    [
        (44, 47, "44 of 44", Result.QUALIFIED),
        (4, 5, "4 of 44", Result.INCONCLUSIVE),
        (0, 0, NOT_MEASURED, Result.INCONCLUSIVE),
    ],
)
def test_a_look_at_the_metadata_that_was_asked_for_must_have_been_taken(
    good: RunRecord, looked_decode: int, looked: int, said: str, result: Result
) -> None:
    name = "decode steps of the candidate whose C128A rows were looked at, rank 1"
    measured = replace(good, ranks={Arm.CANDIDATE: ranks(looked_decode, looked)})
    asked = verdict_of(replace(measured, looks_at_metadata=frozenset({Arm.CANDIDATE})))
    assert asked.result is result
    assert cell(asked, name).reached == said
    assert verdict_of(measured).result is Result.QUALIFIED  # nobody asked


LOG = ProbeRecord(log=LogSigns(counts={}, first={}, warnings={}))
SAMPLE = Sample(time_s=0.0, run="", scenario="", in_flight=0, answered=True, values={})
ALL = replace(LOG, samples=(SAMPLE,), gpu_errors=())
KEPT = ResolvedConfiguration(graph_mode="FULL_DECODE_ONLY")


def probed(record: RunRecord, **arms: ProbeRecord) -> RunRecord:
    return replace(
        record,
        probes={Arm.BASELINE: ALL, Arm.CANDIDATE: ALL, Arm.CONTROL: ALL}
        | {Arm(name): probes for name, probes in arms.items()},
        configurations=dict.fromkeys(Arm, KEPT),
    )


def test_probes_that_looked_at_every_arm_are_listed(good: RunRecord) -> None:
    verdict = verdict_of(probed(good))
    assert verdict.result is Result.QUALIFIED
    assert cell(verdict, "probes of every arm").reached == "log, metrics, configuration, kernel log"
    assert not any("not measured" in said for said in verdict.limitations)


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (replace(ALL, log=None), "log of candidate"),
        (replace(ALL, samples=()), "metrics of candidate"),
        (replace(ALL, samples=(replace(SAMPLE, answered=False),)), "metrics of candidate"),
        (replace(ALL, gpu_errors=None), "kernel log of candidate"),
        (ProbeRecord(), "log and metrics and kernel log of candidate"),
    ],
)
def test_what_a_probe_left_of_the_baseline_only_is_missing_evidence(
    good: RunRecord, left: ProbeRecord, said: str
) -> None:
    verdict = verdict_of(probed(good, candidate=left))
    assert verdict.result is Result.INCONCLUSIVE
    assert verdict.reasons[0] == f"Coverage: {said}: not measured; required as of the baseline."


def test_what_no_arm_has_is_a_limitation(good: RunRecord) -> None:
    bare = probed(good, baseline=LOG, candidate=LOG, control=LOG)
    verdict = verdict_of(replace(bare, configurations={}))
    assert verdict.result is Result.QUALIFIED
    assert "Metrics and configuration of baseline, candidate, control: not measured." in verdict.limitations
    graphic = verdict_of(replace(bare, replay=FULL_GRAPHS))
    assert "Metrics and kernel log of baseline, candidate, control: not measured." in graphic.limitations


def test_an_arm_that_did_not_serve_is_not_asked_for_probes(good: RunRecord) -> None:
    record = with_arm(probed(good, candidate=ProbeRecord()), Arm.CANDIDATE, ArmState.DIED)
    verdict = verdict_of(record)
    assert verdict.result is Result.REJECTED
    assert not any("as of the baseline" in item.summary for item in verdict.findings)
