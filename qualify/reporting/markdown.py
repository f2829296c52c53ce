"""The summary of a verdict in Markdown, short enough for the summary page of a CI job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qualify.findings import Verdict, Weight
from qualify.reporting.coverage import Standing, cells_that_are, full_name, standing
from qualify.reporting.plain import one_line
from qualify.reporting.waivers import untold_waivers

MARKDOWN = "summary.md"
MOST_LINES = 60
"""The summary has fewer lines than this, whatever the run found."""
# Entries of a list and of the table: 5 lists of 7 lines, a table of 11, and 12 lines of headings at most.
_MOST = 6
_MOST_CELLS = 8
_LONGEST = 400
_MARKS = {Standing.MISSED: " **missed**", Standing.LIMITATION: " not reached: a limitation"}
# What means something within a line; what makes a link, a heading or a list of what follows.
_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~$#@]|:(?=//)|:(?=\w+:)|(?<=www)\.|^[-+=]")
_NUMBER = re.compile(r"^(\d{1,9})([.)])")


def markdown(verdict: Verdict, where: str) -> str:
    """Writes a verdict for the summary page of a CI job.

    Args:
        verdict: The verdict.
        where: Name of the bundle, where everything that is cut here can be read.

    Returns:
        GitHub's Markdown, of fewer than `MOST_LINES` lines. What a server said cannot become markup.
    """
    open_ = [_advised(verdict, item.summary) for item in verdict.findings if item.weight is Weight.UNTESTED]
    waived = [item.summary for item in untold_waivers(verdict)]
    reasons = [_advised(verdict, reason) for reason in verdict.reasons]
    lines = [
        f"## qualify: {verdict.result}: {escaped(verdict.release)}",
        "",
        f"Subject: {escaped(verdict.subject)}  ",
        "Scope: " + escaped("; ".join(f"{label}: {value}" for label, value in verdict.scope)),
        *_list("Reasons", reasons),
        *_list("Also open", [line for line in open_ if line not in reasons]),
        *_list("Waived", waived),
        *_coverage(verdict),
        *_list("Limitations", verdict.limitations),
        "",
        f"Evidence: bundle {escaped(where)}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text as Markdown that shows it and nothing else, in one line.

    Args:
        text: Any text, of a server's log too.

    Returns:
        The text without control characters, cut to a few hundred characters; punctuation that means something
        in Markdown, starts a link or names a user stands as a character reference.
    """
    line = re.sub(r" +", " ", one_line(text)).strip()
    if len(line) > _LONGEST:
        line = line[:_LONGEST] + "..."
    line = _SPECIAL.sub(lambda match: f"&#{ord(match.group())};", line)
    return _NUMBER.sub(lambda match: f"{match[1]}&#{ord(match[2])};", line)


def _advised(verdict: Verdict, summary: str) -> str:
    """A finding's summary with what to do about it."""
    advice = next((item.advice for item in verdict.findings if item.summary == summary), "")
    return f"{summary} {advice}".strip()


def _list(title: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    lines = ["", f"**{title}**", "", *(f"- {escaped(text)}" for text in texts[:_MOST])]
    if len(texts) > _MOST:
        lines.append(f"- and {len(texts) - _MOST} more")
    return lines


def _coverage(verdict: Verdict) -> list[str]:
    """The coverage table; what was missed first, then what is required, then the rest."""
    if not verdict.coverage:
        return []
    ordered = [cell for wanted in Standing for cell in cells_that_are(verdict, wanted)]
    lines = ["", "| coverage | reached | required |", "|---|---|---|"]
    for cell in ordered[:_MOST_CELLS]:
        required = escaped(cell.required) + _MARKS.get(standing(verdict, cell), "")
        lines.append(f"| {escaped(full_name(cell))} | {escaped(cell.reached)} | {required} |")
    if len(ordered) > _MOST_CELLS:
        lines.append(f"| and {len(ordered) - _MOST_CELLS} more | | |")
    return lines
