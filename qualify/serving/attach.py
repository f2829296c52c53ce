"""A server that is already running and is only spoken to: never started, never stopped."""

from __future__ import annotations

from collections.abc import Iterable

from qualify.loopback import loopback_url
from qualify.serving.launcher import LOG_TAIL_LINES, Exit


class AttachLauncher:
    """Gives a server that is already there.

    Args:
        url: Its base URL.

    Raises:
        UsageError: The URL is not on loopback.
    """

    def __init__(self, url: str) -> None:
        self._url = loopback_url(url)

    def start(self) -> AttachedServer:
        """Starts nothing."""
        return AttachedServer(self._url)


class AttachedServer:
    """A server of which only its answers are known.

    Args:
        url: Its base URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.observable = False
        self.rss_bytes: int | None = None
        self.peak_rss_bytes: int | None = None

    def ended(self) -> Exit | None:
        """Always None: its processes cannot be seen from here."""
        return None

    def log_lines(self) -> Iterable[str]:
        """Always empty: its log cannot be seen from here."""
        return ()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
        """Always empty."""
        return ()

    def last_line(self) -> str:
        """Always empty."""
        return ""

    async def stop(self) -> None:
        """Leaves it running."""
