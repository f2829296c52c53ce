"""The one screen at the end of a run: verdict, reasons, limitations, where to look."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualify.findings import Result, Verdict, Weight

_COLOURS = {Result.QUALIFIED: "green", Result.REJECTED: "red", Result.INCONCLUSIVE: "yellow"}
_MOST_FINDINGS = 12


def print_verdict(console: Console, verdict: Verdict, where: str) -> None:
    """Prints a verdict for people.

    Args:
        console: Where to; plain text without control characters where it is not a terminal.
        verdict: The verdict.
        where: Where the evidence is.
    """
    title = Text(f"{verdict.result}", style=f"bold {_COLOURS[verdict.result]}")
    console.print(Text("verdict: ") + title + Text(f"  {verdict.release}"))
    _list(console, "scope", [f"{label}: {value}" for label, value in verdict.scope])
    _list(console, "subject", [verdict.subject])
    _list(console, "reasons", list(verdict.reasons))
    shown = [finding for finding in verdict.findings if finding.weight in (Weight.DEFECT, Weight.UNTESTED)]
    lines = []
    for finding in shown[:_MOST_FINDINGS]:
        lines.append(
            f"{finding.weight}: {finding.summary}" + (f" {finding.advice}" if finding.advice else "")
        )
    if len(shown) > _MOST_FINDINGS:
        lines.append(f"and {len(shown) - _MOST_FINDINGS} more in verdict.json")
    _list(console, "findings", lines)
    if verdict.coverage:
        table = Table("coverage", "reached", "required", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for cell in verdict.coverage:
            mark = {True: "", False: " MISSED", None: ""}[cell.satisfied]
            table.add_row(Text(cell.name), Text(cell.reached), Text(f"{cell.required}{mark}"))
        console.print(table)
    _list(console, "limitations", list(verdict.limitations))
    console.print(Text(f"evidence: {where}"), soft_wrap=True)


def _list(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(Text(title))
    for line in lines:
        console.print(Text(f"  - {line}"), soft_wrap=not console.is_terminal)
