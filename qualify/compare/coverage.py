"""Which of the required cells the run really reached, by measurement and not by intention."""

from __future__ import annotations

import math

import numpy as np

from qualify.compare.figures import Power, Spread, in_known_units
from qualify.findings import CoverageCell, Finding, Weight
from qualify.policy import CoveragePolicy
from qualify.record import GraphCounts, RunRecord
from qualify.steps import StepTable
from qualify.transcript import Arm

NOT_MEASURED = "not measured"
STEP_LOG = "step log"
TRANSCRIPTS = "transcripts"
SERVER_LOG = "server log"
ENTRIES_AT_LEAST = 128
"""Narrowest active width of the C128A metadata rows, in entries, and the unit of their capacity."""

RULE_OF_THREE = 3
"""An event that did not happen in n tries has a probability below 3/n, with 95%."""

GENTLEST_KNOWN = 0.0006
"""Nats: excess of the mean divergence where the newest compressed entry is missing in every row, measured on
an H200 with a small DeepSeek V4 whose floor is 0.0033 nats."""


def measure(record: RunRecord, policy: CoveragePolicy, compared: int) -> tuple[CoverageCell, ...]:
    """The coverage table.

    Args:
        record: The run record.
        policy: What must have been reached.
        compared: Positions of the candidate that were compared in its decisive run.
    """
    candidate, baseline = record.steps.get(Arm.CANDIDATE), record.steps.get(Arm.BASELINE)
    return (
        _rows(candidate, policy.minimum_rows),
        _replayed(candidate, policy.replay_share),
        _baseline_replays(baseline),
        *_counted(record, Arm.CANDIDATE),
        *_counted(record, Arm.BASELINE),
        CoverageCell(
            name="positions compared",
            reached=str(compared),
            required=f"at least {policy.judged_positions}",
            satisfied=compared >= policy.judged_positions,
            how=TRANSCRIPTS,
        ),
        _contexts(record),
        *_window(record),
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


def _replayed(steps: StepTable | None, share: float) -> CoverageCell:
    name, required = "decode steps of the candidate that were replays", f"at least {share:.1%}"
    if steps is None or not steps.decode.any():
        return _unmeasured(name, required)
    # a step that was replayed in pieces builds and reads its metadata afresh
    total, replays = int(steps.decode.sum()), int((steps.decode & steps.whole).sum())
    return CoverageCell(
        name=name,
        reached=f"{replays} of {total} ({replays / total:.1%})",
        required=required,
        satisfied=replays >= share * total,
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
    if graphs is None:
        return ()
    none = bool(graphs.steps) and all(mode == "NONE" for mode, _, _ in graphs.steps)
    baseline = arm is Arm.BASELINE
    return (
        CoverageCell(
            name=f"steps of the {arm} as its server counted them",
            reached=_by_mode(graphs),
            required="none with a graph" if baseline else "",
            satisfied=none if baseline else None,
            how=SERVER_LOG,
        ),
    )


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


def capacity_entries(max_model_len: int, ratio: int) -> int:
    """Row width of the preallocated buffers: ``round_up(ceil(max_model_len / ratio), 128)``."""
    return math.ceil(math.ceil(max_model_len / ratio) / ENTRIES_AT_LEAST) * ENTRIES_AT_LEAST


def shows_up_to(max_model_len: int, ratio: int) -> int | None:
    """Longest context in a batch at which a packed stride still differs from the capacity stride.

    The packed width is ``next_pow2(longest // ratio)``, at least 128 and at most capacity, so the rows differ
    while ``longest // ratio`` is at most the largest power of two below capacity.

    Returns:
        Tokens; None where it never differs.
    """
    capacity = capacity_entries(max_model_len, ratio)
    if capacity <= ENTRIES_AT_LEAST:
        return None
    width = 1 << ((capacity - 1).bit_length() - 1)
    return (width + 1) * ratio - 1


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


def longest_context(requests: tuple) -> int:  # type: ignore[type-arg]
    """Longest context that any judged request reaches, prompt and generated tokens together."""
    return max(
        (request.context_tokens + request.max_tokens for request in requests if request.judged), default=0
    )


def shortfalls(cells: tuple[CoverageCell, ...]) -> list[Finding]:
    """One finding for each required cell that was not reached."""
    return [
        Finding(
            rule="coverage",
            weight=Weight.UNTESTED,
            summary=f"Coverage: {cell.name}: {cell.reached}; required {cell.required}.",
            advice="Record the server's steps."
            if cell.reached == NOT_MEASURED
            else "Send a load that reaches it, or serve so that it can be reached.",
        )
        for cell in cells
        if cell.satisfied is False
    ]


def limitations(record: RunRecord, cells: tuple[CoverageCell, ...]) -> list[str]:
    """What was not covered, in sentences made from the coverage table."""
    said = [
        f"{cell.name[:1].upper()}{cell.name[1:]}: {cell.reached}."
        for cell in cells
        if cell.satisfied is False or cell.reached == NOT_MEASURED
    ]
    lengths = [
        request.context_tokens + request.max_tokens
        for scenario in record.scenarios
        for request in scenario.requests
    ]
    if lengths:
        said.append(
            f"No context longer than {max(lengths)} tokens was tried"
            + (f", of {record.max_model_len} that the server accepts." if record.max_model_len else ".")
        )
    steps = record.steps.get(Arm.CANDIDATE)
    if steps is not None and steps.decode.any():
        sizes = np.unique(steps.rows[steps.decode])
        said.append(
            f"No decode step had more than {int(sizes.max())} rows; seen were "
            f"{', '.join(str(int(size)) for size in sizes)}."
        )
    return said


def quiet(floor: Spread) -> list[str]:
    """What a floor of exactly zero leaves open.

    Args:
        floor: Figures of the baseline's runs, which are identical.
    """
    if floor.positions < RULE_OF_THREE:
        return []
    rarest = floor.positions // RULE_OF_THREE
    return [
        f"The floor is exactly zero at {floor.positions} positions, so any difference counts; noise at fewer "
        f"than 1 of {rarest} positions would not have shown in it (with 95%)."
    ]


def unseen(power: Power) -> list[str]:
    """What the run's floor could not have shown, in sentences.

    Args:
        power: What the run could have seen.
    """
    if power.share is None:
        said = [
            f"No fault could have been found with {power.requests} requests and this floor, however clear."
        ]
    else:
        said = [
            f"A clear fault that hits fewer than {power.share:.1%} of the requests would have been missed "
            f"with more than 5% probability: {power.needed} of {power.requests} requests must be hit."
        ]
    if power.gentle is None:
        said.append("A fault that shifts every request a little could not have been found.")
    elif power.gentle > 0:
        said.append(
            f"A fault that adds less than {power.gentle:.2g} nats to every request's mean divergence "
            f"({in_known_units(power.gentle)}) hides below this floor. For scale: one missing attention key "
            f"in every row, the gentlest known fault, added {GENTLEST_KNOWN:.2g} nats on a real GPU."
        )
    return said
