"""How the cells of a coverage table stand: a cell that was not reached may be one that the policy lets go."""

from __future__ import annotations

from enum import StrEnum

from qualify.findings import CoverageCell, Verdict, Weight, is_shortfall_of


class Standing(StrEnum):
    """How a cell stands; what decides comes first."""

    MISSED = "missed"  # required and not reached: nothing is qualified
    LIMITATION = "limitation"  # not reached, and the policy takes that as a limitation only
    REACHED = "reached"
    SHOWN = "shown"  # nothing is required


def standing(verdict: Verdict, cell: CoverageCell) -> Standing:
    """How a cell of a verdict's coverage table stands.

    Args:
        verdict: The verdict.
        cell: One of its cells.
    """
    if cell.satisfied is None:
        return Standing.SHOWN
    if cell.satisfied:
        return Standing.REACHED
    let_go = any(
        finding.weight is Weight.NOTE and is_shortfall_of(finding, cell) for finding in verdict.findings
    )
    return Standing.LIMITATION if let_go else Standing.MISSED


def cells_that_are(verdict: Verdict, wanted: Standing) -> list[CoverageCell]:
    """Cells of a verdict's coverage table that stand so, in its order.

    Args:
        verdict: The verdict.
        wanted: How they stand.
    """
    return [cell for cell in verdict.coverage if standing(verdict, cell) is wanted]


def full_name(cell: CoverageCell) -> str:
    """A cell's name with the scenario that demands it."""
    return f"{cell.scenario}: {cell.name}" if cell.scenario else cell.name
