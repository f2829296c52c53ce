"""A server that is already running and is only spoken to: never started, never stopped."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from qualify.errors import UsageError
from qualify.serving.launcher import LOG_TAIL_LINES, Exit


def loopback_url(text: str) -> str:
    """Checks the URL of a server to attach to.

    Args:
        text: What the user gave.

    Returns:
        Scheme, host and port, without a trailing slash.

    Raises:
        UsageError: It is not an ``http`` URL of this machine's loopback interface.
    """
    advice = "Give http://127.0.0.1:PORT; to reach another machine's server, forward its port to this one."
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not a URL: {error}", advice=advice) from error
    if parts.scheme != "http" or port is None or parts.path.rstrip("/") or parts.query or parts.fragment:
        raise UsageError(f"{text!r} is not of the form http://HOST:PORT", advice=advice)
    if parts.username or parts.password:
        raise UsageError("credentials in a server's URL would end up in the bundle", advice=advice)
    if not _is_loopback(parts.hostname or ""):
        raise UsageError(
            f"load is sent to this machine only, and {parts.hostname!r} is not it", advice=advice
        )
    return f"http://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
