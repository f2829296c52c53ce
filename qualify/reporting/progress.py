"""What a run looks like while it runs: events line by line, and below them what is waited for."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from rich.text import Text

from qualify.reporting.plain import one_line

_REDRAW_EVERY_S = 0.5
# A wait that nobody has told of for so long is over.
_STALE_AFTER_S = 3.0
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class _Wait:
    """What is waited for.

    Attributes:
        text: What, in one line.
        detail: More of it, e.g. the last line of a server's log; may be empty.
        told_s: When that was told, by the monotonic clock.
    """

    text: str
    detail: str
    told_s: float


class Progress:
    """Prints events with the time since the start, and says what is waited for.

    On a terminal the lines that tell what is waited for are rewritten in place; elsewhere a line is printed
    now and then, without control characters.

    Args:
        stream: Where to print; standard error by default, so that standard output stays for results.
        every_s: Seconds between two lines about the same wait where the stream is not a terminal.
    """

    def __init__(self, stream: TextIO | None = None, every_s: float = 15.0) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._every_s = every_s
        self._began = self._drawn_s = time.monotonic()
        self._waits: dict[str, _Wait] = {}
        self._logged_s: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._erase()

    def say(self, text: str) -> None:
        """Prints one event; what was waited for until then is over."""
        self._erase()
        self._waits.clear()
        now = time.monotonic()
        self._logged_s = dict.fromkeys(self._logged_s, now)
        print(f"[{self._elapsed(now)}] {_printed(text)}", file=self._stream, flush=True)

    def begin(self, *about: str) -> None:
        """Takes the time at which things begin, e.g. arms."""
        self._begun |= dict.fromkeys(about, time.monotonic())

    def took(self, about: str) -> str:
        """Minutes and seconds since something began; since the start where it was not told to begin."""
        return minutes(time.monotonic() - self._begun.get(about, self._began))

    def wait(self, text: str, *, about: str = "", detail: str = "") -> None:
        """Tells what is waited for; may be called often.

        Args:
            text: What, in one line.
            about: Who waits, where several do at the same time: each has lines of its own.
            detail: More of it, e.g. the last line of a server's log.
        """
        now = time.monotonic()
        if self._live:
            self._waits[about] = _Wait(text, detail, now)
            if now - self._drawn_s >= _REDRAW_EVERY_S:
                self._draw(now)
        elif now - self._logged_s.setdefault(about, self._began) >= self._every_s:
            self._logged_s[about] = now
            line = f"[{self._elapsed(now)}] ... {text}" + (f"; {detail}" if detail else "")
            print(one_line(line[:_LONGEST]), file=self._stream, flush=True)

    def _draw(self, now: float) -> None:
        self._erase()
        self._drawn_s = now
        width, height = _size(self._stream)
        lines = []
        for wait in self._waits.values():
            if now - wait.told_s < _STALE_AFTER_S:
                lines.append(_fitted(f"[{self._elapsed(now)}] ... {wait.text}", width - 1))
                if wait.detail:
                    lines.append(_fitted(f"             {wait.detail}", width - 1))
        lines = lines[: height - 1]
        self._lines = len(lines)
        print("\n".join(lines), end="", file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._lines:
            up = f"\033[{self._lines - 1}A" if self._lines > 1 else ""
            print(f"\r{up}\033[J", end="", file=self._stream, flush=True)
            self._lines = 0

    def _elapsed(self, now: float) -> str:
        return minutes(now - self._began).rjust(6)


def _size(stream: TextIO) -> os.terminal_size:
    """Size of the terminal that this stream goes to: others may go to a file or to another one."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size()
    return size if size.columns and size.lines else shutil.get_terminal_size()


def minutes(seconds: float) -> str:
    """Seconds as ``minutes:seconds``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _printed(text: str) -> str:
    """The lines of a text without control characters."""
    return "\n".join(one_line(line) for line in text.splitlines())


def _fitted(line: str, width: int) -> str:
    """The line cut to the columns of a terminal, where some characters take two."""
    text = Text(one_line(line))
    text.truncate(width, overflow="ellipsis")
    return text.plain
