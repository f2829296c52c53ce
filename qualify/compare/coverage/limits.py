"""What was not reached, or could not have been seen, in sentences made from the coverage table."""

from __future__ import annotations

import numpy as np

from qualify.compare.coverage.load import Load, arm_load
from qualify.compare.figures import Power, Spread, in_known_units
from qualify.findings import (
    ARM_FILES,
    COVERAGE,
    NOT_MEASURED,
    STEP_LOG,
    STEPS_OF_ANSWERS,
    CoverageCell,
    Finding,
    Weight,
)
from qualify.policy import CoveragePolicy
from qualify.record import RunRecord
from qualify.transcript import Arm

RULE_OF_THREE = 3
"""An event that did not happen in n tries has a probability below 3/n, with 95%."""

GENTLEST_KNOWN = 0.0006
"""Nats: excess of the mean divergence where the newest compressed entry is missing in every row, measured on
an H200 with a small DeepSeek V4 whose floor is 0.0033 nats."""


def shortfalls(cells: tuple[CoverageCell, ...], policy: CoveragePolicy) -> list[Finding]:
    """One finding for each required cell that was not reached.

    Args:
        cells: The coverage table.
        policy: Names the demands of scenarios whose shortfall is a limitation only.
    """
    return [
        Finding(
            rule=COVERAGE,
            weight=Weight.NOTE if cell.kind in policy.limitations_only else Weight.UNTESTED,
            scenario=cell.scenario,
            summary=cell.shortfall,
            advice=_advice(cell),
        )
        for cell in cells
        if cell.satisfied is False
    ]


def _advice(cell: CoverageCell) -> str:
    if cell.how == STEPS_OF_ANSWERS:
        return "The step log is not, or not all, of these answers: see what became of it, and serve again."
    if cell.how == ARM_FILES:
        return "See what became of it: it must be there as it is for the baseline. Then serve again."
    if cell.reached == NOT_MEASURED and cell.how == STEP_LOG:
        return "Record the server's steps."
    return "Send a load that reaches it, or serve so that it can be reached."


def limitations(record: RunRecord, cells: tuple[CoverageCell, ...]) -> list[str]:
    """What was not covered, in sentences made from the coverage table."""
    said = [
        f"{cell.name[:1].upper()}{cell.name[1:]}"
        + (f" in scenario {cell.scenario}" if cell.scenario else "")
        + f": {cell.reached}."
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
    load = arm_load(record, Arm.CANDIDATE)
    if load is not None and (never := _never(load.of())):
        said.append(f"The candidate never met: {', '.join(never)}.")
    return said + _kept_prefixes(record)


def _kept_prefixes(record: RunRecord) -> list[str]:
    runs: dict[str, list[str]] = {}
    for run, why in record.prefixes_kept.items():
        if why:
            runs.setdefault(why, []).append(str(run))
    return [
        f"The prefix cache was not emptied before {', '.join(names)} ({why}): prompts of earlier runs may "
        "have been found there and not computed."
        for why, names in runs.items()
    ]


def _never(load: Load) -> list[str]:
    met = {
        "a batch padded to a larger graph": load.padded > 0 or not load.graphs,
        "a prompt found in the prefix cache": bool(load.prefix_hits),
        "a preemption": load.preemptions > 0,
        "a prefill during decode": load.prefill_beside > 0,
        "speculative decoding": load.speculating,
    }
    return [what for what, seen in met.items() if not seen]


def quiet(floor: Spread, limit: float) -> list[str]:
    """What a quiet floor leaves open.

    Args:
        floor: Figures of the baseline's runs, which differ by nothing that matters.
        limit: Nats beyond which a difference counts; 0 where they are identical.
    """
    if floor.positions < RULE_OF_THREE:
        return []
    rarest = floor.positions // RULE_OF_THREE
    if limit:
        said = (
            f"The floor is at most {floor.largest:.2g} nats at {floor.positions} positions, "
            f"so one difference over {limit:.2g} nats counts"
        )
    else:
        said = f"The floor is exactly zero at {floor.positions} positions, so any difference counts"
    return [f"{said}; noise at fewer than 1 of {rarest} positions would not have shown in it (with 95%)."]


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
