"""Signs of trouble in a server's log, where the server itself goes on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from qualify.probe import ILLEGAL_MEMORY, NAN, TRACEBACK, LogSigns
from qualify.serving.endings import TOLD_TO_STOP

_SIGNS = {
    TRACEBACK: re.compile(r"Traceback \(most recent call last\)"),
    ILLEGAL_MEMORY: re.compile(r"illegal memory access|device-side assert|CUDA error: |misaligned address"),
    NAN: re.compile(r"\b(NaNs?|nan)\b"),
}
# "(EngineCore pid=12) WARNING 12-01 10:36:59 [file.py:123] text", or any logger's "WARNING: text"
_WARNING = re.compile(r"\b(?:WARNING|ERROR)\b(?:[^\]]*\]|:)?\s*(?P<text>.*)$")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_TEXT = 160
_MOST = 20
# Servers log what failed while they looked for what the machine has, and what they say once they were told to
# stop tells of the stop.
_READY = re.compile(r"Application startup complete")
_STOPS = re.compile(TOLD_TO_STOP.pattern + r"|INFO:\s+Shutting down")


def read_signs(lines: Iterable[str]) -> LogSigns | None:
    """Counts the signs in a log: those of serving; warnings from the start on.

    Args:
        lines: The log, line by line.

    Returns:
        The signs; None where there is no line.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    warnings: Counter[str] = Counter()
    any_line = False
    for line in lines:
        any_line = True
        if _STOPS.search(line):
            break
        if _READY.search(line):
            counts.clear()
            first.clear()
        for sign, pattern in _SIGNS.items():
            if pattern.search(line):
                counts[sign] += 1
                first.setdefault(sign, line.strip()[:_TEXT])
        if found := _WARNING.search(line):
            warnings[_NUMBER.sub("#", found["text"])[:_TEXT]] += 1
    if not any_line:
        return None
    return LogSigns(counts=dict(counts), first=first, warnings=dict(warnings.most_common(_MOST)))
