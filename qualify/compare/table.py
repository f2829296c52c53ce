"""The decision table: candidate, control, floor, coverage and evidence give the verdict.

Kept as data, so that the documentation prints what the gate does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from qualify.findings import Finding, Result, Weight

ANY = "any"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the findings say, one word each.

    Attributes:
        candidate: ``defect`` or ``no defect``.
        control: ``caught``, ``not caught`` or ``switched off``.
        floor: ``known`` or ``not known``.
        coverage: ``reached`` or ``short``.
        evidence: ``complete`` or ``incomplete``.
    """

    candidate: str
    control: str
    floor: str
    coverage: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row; the first that fits decides. `ANY` fits everything.

    Attributes:
        facts: What it asks for.
        result: The verdict.
        because: Why.
    """

    facts: Facts
    result: Result
    because: str


TABLE = (
    Row(
        Facts("defect", ANY, ANY, ANY, ANY),
        Result.REJECTED,
        "a confirmed finding rejects, whatever else is known",
    ),
    Row(
        Facts(ANY, ANY, ANY, ANY, "incomplete"),
        Result.INCONCLUSIVE,
        "missing evidence is never a pass",
    ),
    Row(
        Facts(ANY, ANY, "not known", ANY, ANY),
        Result.INCONCLUSIVE,
        "without the baseline's own noise nothing can be told from it",
    ),
    Row(
        Facts(ANY, "switched off", ANY, ANY, ANY),
        Result.INCONCLUSIVE,
        "a pass needs a control that was caught",
    ),
    Row(
        Facts(ANY, "not caught", ANY, ANY, ANY),
        Result.INCONCLUSIVE,
        "a run that cannot see the known fault says nothing about others",
    ),
    Row(
        Facts(ANY, ANY, ANY, "short", ANY),
        Result.INCONCLUSIVE,
        "what was not reached was not tested",
    ),
    Row(
        Facts("no defect", "caught", "known", "reached", "complete"),
        Result.QUALIFIED,
        "the candidate differs no more than the baseline from itself, and the run could have seen it",
    ),
)

_ABOUT = {"control": "control", "floor": "floor", "coverage": "coverage"}
"""Rules whose untested findings belong to a column of their own; all others are about the evidence."""


def facts(findings: Sequence[Finding], control_configured: bool) -> Facts:
    """Reduces findings to facts: in each column the worst one counts.

    Args:
        findings: All findings, waivers applied.
        control_configured: False where the control was switched off.
    """
    untested = {_ABOUT.get(item.rule, "evidence") for item in findings if item.weight is Weight.UNTESTED}
    caught = any(item.rule == "control" and item.weight is Weight.SATISFIED for item in findings)
    if not control_configured:
        control = "switched off"
    else:
        control = "caught" if caught and "control" not in untested else "not caught"
    return Facts(
        candidate="defect" if any(item.weight is Weight.DEFECT for item in findings) else "no defect",
        control=control,
        floor="not known" if "floor" in untested else "known",
        coverage="short" if "coverage" in untested else "reached",
        evidence="incomplete" if "evidence" in untested else "complete",
    )


def decide(seen: Facts) -> Row:
    """The first row that fits.

    Args:
        seen: The facts.
    """
    return next(row for row in TABLE if all(_fits(row.facts, seen, field.name) for field in fields(Facts)))


def _fits(asked: Facts, seen: Facts, column: str) -> bool:
    return getattr(asked, column) in (ANY, getattr(seen, column))


def as_markdown() -> str:
    """The table for the documentation."""
    names = [field.name for field in fields(Facts)]
    lines = ["| " + " | ".join([*names, "verdict", "because"]) + " |", "|---" * (len(names) + 2) + "|"]
    for row in TABLE:
        cells = [str(getattr(row.facts, name)) for name in names]
        lines.append("| " + " | ".join([*cells, f"**{row.result}**", row.because]) + " |")
    return "\n".join(lines) + "\n"
