"""What a run looks like while it runs: one line an event, readable in a terminal and in a CI log."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Prints events with the time since the start, and says what is waited for.

    On a terminal the line that tells what is waited for is rewritten in place; elsewhere it is printed now
    and then, without control characters.

    Args:
        stream: Where to print; standard error by default, so that standard output stays for results.
        every_s: Seconds between two lines about the same wait where the stream is not a terminal.
    """

    def __init__(self, stream: TextIO | None = None, every_s: float = 15.0) -> None:
        self._stream = stream or sys.stderr
        self._every_s = 0.5 if self._stream.isatty() else every_s
        self._began = time.monotonic()
        self._last_wait = self._began
        self._pending = False

    def say(self, text: str) -> None:
        """Prints one event."""
        self._clear()
        print(f"[{self._elapsed()}] {text}", file=self._stream, flush=True)
        self._last_wait = time.monotonic()

    def wait(self, text: str) -> None:
        """Tells what is waited for; may be called often."""
        now = time.monotonic()
        if now - self._last_wait < self._every_s:
            return
        self._last_wait = now
        line = f"[{self._elapsed()}] ... {text}"
        if self._stream.isatty():
            self._clear()
            print(line[:150], end="", file=self._stream, flush=True)
            self._pending = True
        else:
            print(line[:300], file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._pending:
            print("\r\033[K", end="", file=self._stream)
            self._pending = False

    def _elapsed(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60:3d}:{seconds % 60:02d}"
