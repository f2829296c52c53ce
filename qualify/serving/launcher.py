"""What every way of getting a server offers: a launcher gives a server, a server can be watched and stopped.

`process` starts one, `attach` is given one. A container launcher has its place beside them: it offers the
same two protocols, and nothing else in the harness needs to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

LOG_TAIL_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """What was seen of a server that is no longer whole; what it means is for `endings`.

    Attributes:
        returncode: Exit code of its main process, negative for a signal; None while that still runs, or
            where it cannot be known.
        lost_child: Name of a worker process that vanished while the main process was still running.
        out_of_memory: True where the machine's out-of-memory killer struck while the server ran.
    """

    returncode: int | None
    lost_child: str | None = None
    out_of_memory: bool = False


class Server(Protocol):
    """A server that was started, or was there."""

    @property
    def url(self) -> str:
        """Base URL without a trailing slash, on loopback."""

    @property
    def observable(self) -> bool:
        """True where its processes and its log can be seen: it can be told how it ended."""

    def ended(self) -> Exit | None:
        """What was seen of its end; None while all of it runs. Cheap: called several times a second."""

    def log_lines(self) -> Iterable[str]:
        """All lines of its log, one by one; empty where there is none."""

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
        """The last lines of its log; empty where there is none."""

    def last_line(self) -> str:
        """The last line of its log that is not blank; empty where there is none."""

    @property
    def rss_bytes(self) -> int | None:
        """Resident memory of all its processes together when last seen; None where not measured."""

    @property
    def peak_rss_bytes(self) -> int | None:
        """Largest resident memory seen so far of all its processes together; None where not measured."""

    async def stop(self) -> None:
        """Ends it and everything that it started. Does nothing more when called again."""


class Launcher(Protocol):
    """A way of getting a server."""

    def start(self) -> Server:
        """Gets the server going; does not wait for it to be ready.

        Raises:
            UsageError: What the user asked for is impossible (port taken, URL not on loopback).
            MachineryError: The machine cannot start it (interpreter or module missing).
        """
