"""A server's log, fit to be searched and shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from qualify.serving.launcher import LOG_TAIL_LINES

# A line of vLLM's log is below 300 bytes as a rule; one line may be much longer.
_BYTES_A_LINE = 400
_LEAST_BYTES = 65_536
_LONGEST_LINE = 500


def log_tail(path: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a log that are not blank.

    Args:
        path: The log; it may still be written to.
        lines: How many at most.

    Returns:
        Lines without control characters, shortened to what a report can hold; empty where there is no log.
    """
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - max(_LEAST_BYTES, lines * _BYTES_A_LINE)))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    kept = [clean for line in text.splitlines() if (clean := _printable(line).rstrip())]
    return tuple(kept[-lines:])


def log_lines(path: Path) -> Iterator[str]:
    """All lines of a log, from the first.

    Args:
        path: The log.

    Yields:
        Lines as `log_tail` gives them; none where there is no log.
    """
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as log:
            yield from (clean for line in log if (clean := _printable(line).rstrip()))


class LoggedToFile:
    """The part of a server that reads its output back from the file to which that is written."""

    _log: Path

    def log_lines(self) -> Iterable[str]:
        """All lines of its output."""
        return log_lines(self._log)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
        """The last lines of its output."""
        return log_tail(self._log, lines)

    def last_line(self) -> str:
        """The last line of its output."""
        return next(iter(self.log_tail(1)), "")


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else " " for character in line[:_LONGEST_LINE])
