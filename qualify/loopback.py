"""This machine's loopback interface: the only place that load is sent to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import httpx2

from qualify.errors import UsageError

HOST = "127.0.0.1"
_ADVICE = "Give http://127.0.0.1:PORT; to reach another machine's server, forward its port to this one."


def loopback_url(text: str) -> str:
    """Checks the URL of a server.

    Args:
        text: What the user gave.

    Returns:
        Scheme, host and port, without a trailing slash.

    Raises:
        UsageError: It is not an ``http`` URL of this machine's loopback interface.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not a URL: {error}", advice=_ADVICE) from error
    if parts.scheme != "http" or port is None or parts.path.rstrip("/") or parts.query or parts.fragment:
        raise UsageError(f"{text!r} is not of the form http://HOST:PORT", advice=_ADVICE)
    if parts.username or parts.password:
        raise UsageError("credentials in a server's URL would end up in the bundle", advice=_ADVICE)
    if not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"load is sent to this machine only, and {parts.hostname!r} is not it", advice=_ADVICE
        )
    return f"http://{parts.netloc}"


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and addresses of the loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def http_client(url: str, *, timeout_s: float | None) -> httpx2.AsyncClient:
    """Makes an HTTP client for a server on loopback.

    Args:
        url: The server's base URL.
        timeout_s: Longest silence of the server; None waits for ever.

    Returns:
        A client that uses no proxy, loads no certificates (there is no TLS), and opens a connection for each
        request: a kept one that the server is just closing would look like a server that hung up.

    Raises:
        UsageError: The URL is not on loopback.
    """
    return httpx2.AsyncClient(
        base_url=loopback_url(url),
        timeout=timeout_s,
        trust_env=False,
        verify=False,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )
