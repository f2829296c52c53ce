"""Coverage by the servers' resolved configurations: a second witness of which graphs there can be."""

from __future__ import annotations

from qualify.findings import NOT_MEASURED, CoverageCell
from qualify.record import ResolvedConfiguration, RunRecord
from qualify.release import FULL_GRAPHS
from qualify.transcript import Arm

SERVER_CONFIGURATION = "server configuration"


def configured_graphs(record: RunRecord) -> tuple[CoverageCell, ...]:
    """One cell each for candidate and baseline, where the bundle has what their servers said.

    Args:
        record: The run record.

    Returns:
        Nothing where replay is emulated, since no graphs are expected there. A configuration that could not
        be read is "not measured" and requires nothing: the step log is the first witness.
    """
    if record.replay != FULL_GRAPHS:
        return ()
    return tuple(
        _cell(arm, record.configurations[arm])
        for arm in (Arm.CANDIDATE, Arm.BASELINE)
        if arm in record.configurations
    )


def _cell(arm: Arm, configuration: ResolvedConfiguration) -> CoverageCell:
    name = f"graph mode that the {arm}'s server resolved"
    mode = configuration.graph_mode
    if mode is None:
        return CoverageCell(name=name, reached=NOT_MEASURED, how=SERVER_CONFIGURATION)
    sizes = configuration.capture_sizes
    captured = f", {len(sizes)} sizes up to {max(sizes)}" if sizes and mode != "NONE" else ""
    baseline = arm is Arm.BASELINE
    return CoverageCell(
        name=name,
        reached=f"{mode}{captured}",
        required="NONE" if baseline else "one with FULL graphs",
        satisfied=mode == "NONE" if baseline else mode.startswith("FULL"),
        how=SERVER_CONFIGURATION,
    )
