"""The coverage table of a whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qualify.compare.configuration import configured_graphs
from qualify.compare.coverage.demands import demanded
from qualify.compare.coverage.load import ArmLoad, Load, arm_load
from qualify.compare.coverage.probes import measured_by_probes, probes_there
from qualify.compare.coverage.replays import (
    JudgedTokens,
    answers_recorded,
    answers_replayed,
    judged_tokens,
    short_of_replays,
)
from qualify.compare.coverage.timeline import most_in_flight
from qualify.compare.coverage.window import shows_up_to
from qualify.compare.oracles import answers_right, known_answers
from qualify.compare.ranks import metadata_covered, ranks_covered
from qualify.compare.strata import CONTEXT_EDGES
from qualify.findings import NOT_MEASURED, SERVER_LOG, STEP_LOG, TRANSCRIPTS, CoverageCell
from qualify.policy import CoveragePolicy
from qualify.record import ExpectedRequest, GraphCounts, RunRecord
from qualify.release import FULL_GRAPHS
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode, RunKey


def measure(record: RunRecord, policy: CoveragePolicy, compared: int) -> tuple[CoverageCell, ...]:
    """The coverage table.

    Args:
        record: The run record.
        policy: What must have been reached.
        compared: Positions of the candidate that were compared in its decisive run.
    """
    candidate, baseline = record.steps.get(Arm.CANDIDATE), record.steps.get(Arm.BASELINE)
    load = arm_load(record, Arm.CANDIDATE)
    judged = judged_tokens(record, Arm.CANDIDATE)
    return (
        _rows(candidate, policy.minimum_rows),
        _replayed(candidate, record.replay, policy.replay_share, judged),
        *answers_recorded(record, Arm.CANDIDATE, judged),
        *answers_replayed(record, judged, policy.replayed_tokens),
        _baseline_replays(baseline),
        *answers_recorded(record, Arm.BASELINE, judged_tokens(record, Arm.BASELINE)),
        *_counted(record, Arm.CANDIDATE),
        *_counted(record, Arm.BASELINE),
        *ranks_covered(record, policy.replay_share),
        *metadata_covered(record),
        *configured_graphs(record),
        CoverageCell(
            name="positions compared",
            reached=str(compared),
            required=f"at least {policy.judged_positions}",
            satisfied=compared >= policy.judged_positions,
            how=TRANSCRIPTS,
        ),
        _contexts(record),
        *_window(record),
        *_loads(load, policy),
        *_timeline(record),
        *measured_by_probes(record),
        *probes_there(record),
        *_known_answers(record, policy.known_answers),
        *demanded(record, load),
    )


def _unmeasured(name: str, required: str) -> CoverageCell:
    return CoverageCell(name=name, reached=NOT_MEASURED, required=required, satisfied=False, how=STEP_LOG)


def _rows(steps: StepTable | None, minimum: int) -> CoverageCell:
    name, required = "rows in one decode step of the candidate", f"at least {minimum}"
    if steps is None or not steps.decode.any():
        return _unmeasured(name, required)
    widest = int(steps.rows[steps.decode].max())
    return CoverageCell(
        name=name, reached=f"at most {widest}", required=required, satisfied=widest >= minimum, how=STEP_LOG
    )


def _replayed(
    steps: StepTable | None, replay: str, share: float, judged: Sequence[JudgedTokens]
) -> CoverageCell:
    name, required = "decode steps of the candidate that were replays", f"at least {share:.1%}"
    if steps is None or not steps.decode.any():
        return _unmeasured(name, required)
    # a step that was replayed in pieces builds and reads its metadata afresh
    total, replays = int(steps.decode.sum()), int((steps.decode & steps.whole).sum())
    other, short = int((steps.decode & steps.replayed & ~steps.whole).sum()), short_of_replays(judged, share)
    return CoverageCell(
        name=name,
        reached=f"{replays} of {total} ({replays / total:.1%})"
        + (f", {other} replayed otherwise than by {replay}" if other else "")
        + "".join(
            f"; in {item.scenario} they computed {item.replayed_decode} of {item.decode} judged tokens"
            for item in short
        ),
        required=required,
        satisfied=replays >= share * total and not short,
        how=STEP_LOG,
    )


def _baseline_replays(steps: StepTable | None) -> CoverageCell:
    name, required = "replays in the baseline", "none"
    if steps is None or not len(steps.decode):
        return _unmeasured(name, required)
    replays = int(steps.replayed.sum())
    return CoverageCell(
        name=name,
        reached=f"{replays} of {len(steps.decode)} steps",
        required=required,
        satisfied=replays == 0,
        how=STEP_LOG,
    )


def _counted(record: RunRecord, arm: Arm) -> tuple[CoverageCell, ...]:
    """A second witness beside the step log: the server's own table, which leaves out its last seconds."""
    graphs = record.graphs.get(arm)
    name = f"steps of the {arm} as its server counted them"
    if graphs is None:
        counted = arm in record.steps and bool(record.graphs)  # another arm's server did
        return (CoverageCell(name=name, reached=NOT_MEASURED, how=SERVER_LOG),) if counted else ()
    required, satisfied = "", None
    if arm is Arm.BASELINE:
        required = "none with a graph"
        satisfied = bool(graphs.steps) and all(mode == "NONE" for mode, _, _ in graphs.steps)
    elif record.replay == FULL_GRAPHS:
        required = "FULL graphs, as in the step log"
        satisfied = not _contradicted(graphs, record.steps.get(arm))
    return (
        CoverageCell(
            name=name, reached=_by_mode(graphs), required=required, satisfied=satisfied, how=SERVER_LOG
        ),
    )


def _contradicted(graphs: GraphCounts, steps: StepTable | None) -> bool:
    """True where the server has no FULL graphs, or counted none and more other steps than the log has."""
    if not graphs.mode.startswith("FULL"):
        return True
    if steps is None or any(mode == "FULL" for mode, _, _ in graphs.steps):
        return False
    return sum(count for _, _, count in graphs.steps) > int((~steps.whole).sum())


def _by_mode(graphs: GraphCounts) -> str:
    modes = sorted({mode for mode, _, _ in graphs.steps})
    counts = {mode: sum(count for name, _, count in graphs.steps if name == mode) for mode in modes}
    said = ", ".join(f"{count} {mode}" for mode, count in counts.items()) or "no step"
    sizes = sorted({padded for mode, padded, _ in graphs.steps if mode == "FULL"})
    used = f" (FULL graphs of {', '.join(map(str, sizes))} rows)" if sizes else ""
    captured = f"; mode {graphs.mode}, {len(graphs.captured)} sizes captured" if graphs.captured else ""
    return f"at least {said}{used}{captured}"


def _contexts(record: RunRecord) -> CoverageCell:
    lengths = [
        request.context_tokens
        for scenario in record.scenarios
        for request in scenario.requests
        if request.judged
    ]
    reached = (
        f"{min(lengths)} to {max(lengths)} tokens, {len(set(lengths))} different" if lengths else NOT_MEASURED
    )
    return CoverageCell(name="contexts of judged requests", reached=reached, how=TRANSCRIPTS)


def _window(record: RunRecord) -> tuple[CoverageCell, ...]:
    if record.max_model_len is None or record.compress_ratio is None:
        return ()
    limit = shows_up_to(record.max_model_len, record.compress_ratio)
    inside = sorted(
        scenario.name
        for scenario in record.scenarios
        if limit is not None and longest_context(scenario.requests) <= limit
    )
    reached = ", ".join(inside) if inside else "no scenario"
    name = "scenarios inside the window in which a packed stride can show"
    what = f"longest context at most {limit} tokens" if limit is not None else "never at this max_model_len"
    return (CoverageCell(name=name, reached=f"{reached} ({what})", how=TRANSCRIPTS),)


def longest_context(requests: Sequence[ExpectedRequest]) -> int:
    """Longest context that any judged request reaches, prompt and generated tokens together."""
    return max(
        (request.context_tokens + request.max_tokens for request in requests if request.judged), default=0
    )


def _loads(arm: ArmLoad | None, policy: CoveragePolicy) -> Iterable[CoverageCell]:
    """What the candidate's steps show of its load."""
    widths, graphs = "active widths of decode steps", "graphs that replayed a decode step as a whole"
    if arm is None:
        for name, wanted in ((widths, policy.active_widths), (graphs, policy.graph_rows)):
            if wanted:
                yield _unmeasured(name, listed(wanted))
        return
    load = arm.of()
    if load.graphs or policy.graph_rows:
        yield _each(graphs, listed(load.graphs), load.graphs, policy.graph_rows, "rows")
    if load.graphs:
        reached = f"{load.padded} steps padded, {load.exact} exact"
        yield CoverageCell(name="padding of replayed decode steps", reached=reached, how=STEP_LOG)
    if load.widths is not None or policy.active_widths:
        seen = load.widths or {}
        yield _each(widths, counts(seen), seen, policy.active_widths, "entries")
    for name, reached in (
        ("contexts alive in the same decode step", said_of_contexts(load)),
        ("prompts found in the prefix cache", said_of_hits(load)),
        ("preemptions", str(load.preemptions)),
        ("steps with a prefill during decode", str(load.prefill_beside)),
        ("speculative decoding", "seen" if load.speculating else "none seen"),
    ):
        yield CoverageCell(name=name, reached=reached, how=STEP_LOG)


def _each(name: str, said: str, seen: Iterable[int], wanted: Sequence[int], unit: str) -> CoverageCell:
    return CoverageCell(
        name=name,
        reached=f"{said} {unit}" if said else NOT_MEASURED,
        required=listed(wanted),
        satisfied=set(wanted) <= set(seen) if wanted else None,
        how=STEP_LOG,
    )


def counts(seen: Mapping[int, int]) -> str:
    """Values with how many steps had each, e.g. ``128 (70 times), 256 (6 times)``."""
    return ", ".join(f"{value} ({count} times)" for value, count in seen.items())


def listed(wanted: Iterable[int]) -> str:
    """Values that must each be seen; empty where there are none."""
    return ", ".join(map(str, wanted))


def said_of_contexts(load: Load) -> str:
    """The widest mix of contexts in one step, and the edges between some step's contexts."""
    if not load.straddling:
        return "never two"
    low, high = max(load.straddling, key=lambda pair: pair[1] - pair[0])
    edges = [edge for edge in CONTEXT_EDGES if load.straddled(edge)]
    across = f", on both sides of {listed(edges)}" if edges else ""
    return f"{low} beside {high} tokens{across}"


def said_of_hits(load: Load) -> str:
    """How many prompts were found in the prefix cache, and how much of them."""
    if not load.prefix_hits:
        return f"none of {load.requests}"
    return (
        f"{len(load.prefix_hits)} of {load.requests}, {load.prefix_hits[0]} to {load.prefix_hits[-1]} tokens"
    )


def _known_answers(record: RunRecord, minimum: int) -> Iterable[CoverageCell]:
    """Whether the baseline can answer what its model can: one that is wrong itself excuses any candidate."""
    asked = known_answers(record)
    if not asked and not minimum:
        return
    run = record.runs.get(RunKey(Arm.BASELINE, Decode.FREE, 1))
    heads = [head for head in run.heads if head.request_id in asked] if run else []
    right = sum(1 for head in heads if run and answers_right(run, head, asked[head.request_id]))
    yield CoverageCell(
        name="known answers that the baseline gets right",
        reached=f"{right} of {len(asked)}",
        required=f"at least {minimum}" if minimum else "",
        satisfied=right >= minimum if minimum else None,
        how=TRANSCRIPTS,
    )


def _timeline(record: RunRecord) -> Iterable[CoverageCell]:
    runs = [run for key, run in record.runs.items() if key.arm is Arm.CANDIDATE]
    most = max((most_in_flight(run.heads) for run in runs), default=0)
    longest = max((head.length for run in runs for head in run.heads if head.judged), default=0)
    if most:
        yield CoverageCell(name="requests in flight at one time", reached=f"at most {most}", how=TRANSCRIPTS)
        yield CoverageCell(
            name="tokens generated by one judged request", reached=f"at most {longest}", how=TRANSCRIPTS
        )
