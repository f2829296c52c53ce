"""The one screen at the end of a run: verdict, reasons, limitations, where to look."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qualify.findings import Result, Verdict, Weight
from qualify.reporting.coverage import Standing, cells_that_are, full_name, standing
from qualify.reporting.plain import one_line
from qualify.reporting.waivers import untold_waivers

FULL_TEXT = "summary.txt"
_COLOURS = {Result.QUALIFIED: "green", Result.REJECTED: "red", Result.INCONCLUSIVE: "yellow"}
_MARKS = {Standing.MISSED: " MISSED", Standing.LIMITATION: " not reached: a limitation"}
_WIDTH = 110
# Entries of a list: as many as a log can bear; fewer and fewer on a terminal until all fits on its screen.
_MOST_IN_A_LOG = 12
_FEWER = (8, 5, 3, 2, 1)
_LONGEST_LINES = 2


def print_verdict(console: Console, verdict: Verdict, where: str, rest: str = "verdict.json") -> None:
    """Prints a verdict for people.

    On a terminal it fits on one screen: lists are cut until it does. Elsewhere lists of more than a dozen
    entries are cut. What is left out is counted, and where it stands is said.

    Args:
        console: Where to; plain text without control characters where it is not a terminal.
        verdict: The verdict.
        where: Where the evidence is.
        rest: Where all that is cut here can be read.
    """
    if not console.is_terminal:
        _print_plain(console, _long(verdict, where, _MOST_IN_A_LOG, rest))
        return
    screens = [_long(verdict, where, _MOST_IN_A_LOG, rest)]
    screens += [_short(verdict, where, most, rest) for most in (_MOST_IN_A_LOG, *_FEWER)]
    screens.append(_short(verdict, where, 1, rest, longest=_LONGEST_LINES * console.width))
    fitting = (screen for screen in screens if len(console.render_lines(screen)) < console.height)
    console.print(next(fitting, screens[-1]))


def full_text(verdict: Verdict, where: str) -> str:
    """Writes a verdict for people, nothing left out.

    Args:
        verdict: The verdict.
        where: Where the evidence is.

    Returns:
        Plain text; the same for the same verdict, whatever the terminal and the environment.
    """
    stream = io.StringIO()
    _print_plain(console_for(stream), _long(verdict, where, None, ""))
    return stream.getvalue()


def console_for(stream: TextIO) -> Console:
    """A console that writes plain text of a fixed width where there is no terminal.

    Args:
        stream: Where to. Variables that force colours have no effect: logs and files are searched.
    """
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, width=_WIDTH, force_terminal=False, color_system=None, highlight=False)


def _print_plain(console: Console, report: Group) -> None:
    # one line a sentence, so that logs can be searched; a table keeps its columns
    for part in report.renderables:
        console.print(part, soft_wrap=not isinstance(part, Table))


def _long(verdict: Verdict, where: str, most: int | None, rest: str) -> Group:
    parts: list[RenderableType] = [
        _title(verdict),
        *_list("scope", [f"{label}: {value}" for label, value in verdict.scope], None, ""),
        *_list("subject", [verdict.subject], None, ""),
        *_list("reasons", _reasons(verdict), most, rest),
        *_list("also found", _others(verdict), most, rest),
        *_list("waived by the policy", _waived(verdict), most, rest),
    ]
    if verdict.coverage:
        parts.append(_coverage_table(verdict))
    parts += _list("limitations", verdict.limitations, most, rest)
    return Group(*parts, Text(f"evidence: {where}"))


def _short(verdict: Verdict, where: str, most: int, rest: str, longest: int | None = None) -> Group:
    def cut(lines: Iterable[str]) -> list[str]:
        return [line if longest is None or len(line) <= longest else f"{line[:longest]}..." for line in lines]

    scope = "; ".join(f"{label}: {value}" for label, value in verdict.scope)
    return Group(
        _title(verdict),
        Text(f"subject: {one_line(verdict.subject)}"),
        Text("scope: " + one_line(cut([scope])[0])),
        *_list("reasons", cut(_reasons(verdict)), most, rest),
        *_list("also found", cut(_others(verdict)), most, rest),
        *_list("waived by the policy", cut(_waived(verdict)), most, rest),
        *_coverage_line(verdict, most),
        *_list("limitations", cut(verdict.limitations), most, rest),
        Text(f"evidence: {where}; in full: {rest}"),
    )


def _title(verdict: Verdict) -> Text:
    result = Text(f"{verdict.result}", style=f"bold {_COLOURS[verdict.result]}")
    return Text("verdict: ") + result + Text(f"  {verdict.release}")


def _reasons(verdict: Verdict) -> list[str]:
    """The reasons, each with what to do about it where a finding says that."""
    advice = {finding.summary: finding.advice for finding in verdict.findings if finding.advice}
    return [f"{reason} {advice[reason]}" if reason in advice else reason for reason in verdict.reasons]


def _others(verdict: Verdict) -> list[str]:
    """Findings against the release that are not among the reasons."""
    return [
        f"{finding.weight}: {finding.summary}" + (f" {finding.advice}" if finding.advice else "")
        for finding in verdict.findings
        if finding.weight in (Weight.DEFECT, Weight.UNTESTED) and finding.summary not in verdict.reasons
    ]


def _waived(verdict: Verdict) -> list[str]:
    return [finding.summary for finding in untold_waivers(verdict)]


def _coverage_table(verdict: Verdict) -> Table:
    table = Table("coverage", "reached", "required", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for cell in verdict.coverage:
        mark = _MARKS.get(standing(verdict, cell), "")
        texts = (full_name(cell), cell.reached, f"{cell.required}{mark}")
        table.add_row(*(Text(one_line(text)) for text in texts))
    return table


def _coverage_line(verdict: Verdict, most: int) -> list[RenderableType]:
    required = [cell for cell in verdict.coverage if cell.satisfied is not None]
    if not required:
        return []
    missed = cells_that_are(verdict, Standing.MISSED)
    reached = len(cells_that_are(verdict, Standing.REACHED))
    said = f"coverage: {reached} of {len(required)} requirements reached"
    named = [f"{full_name(cell)} ({cell.reached}; {cell.required} required)" for cell in missed[:most]]
    if len(missed) > most:
        named.append(f"and {len(missed) - most} more")
    return [Text(one_line(f"{said}; missed: {'; '.join(named)}") if missed else said)]


def _list(title: str, lines: Sequence[str], most: int | None, rest: str) -> list[RenderableType]:
    if not lines:
        return []
    shown: list[RenderableType] = [Text(title), *(Text(f"  - {one_line(line)}") for line in lines[:most])]
    if most is not None and len(lines) > most:
        shown.append(Text(f"  and {len(lines) - most} more in {rest}"))
    return shown
