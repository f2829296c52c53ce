"""One HTTP exchange with a server on loopback: the pieces of the answer are handed on as they come.

Answers come as one small piece a token, so what each piece costs is what the client costs. Here it costs one
read from the socket and one call; a general HTTP client wakes a task, or several, for each.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from qualify.errors import MachineryError

_MOST_ERROR_TEXT = 4096
# What keeps a client from having a socket, whatever the server does.
_NO_SOCKET = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


class ConnectionBrokenError(Exception):
    """The server hung up before its answer was whole, or what it sent is not HTTP."""


class NoSocketError(MachineryError):
    """This machine gave the client no socket: nothing reached the server."""


class HttpStatusError(Exception):
    """The server answered with another status than 200.

    Args:
        status: The status.
        text: The beginning of what it said.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text or f"HTTP status {status}")
        self.status = status


class Reader(Protocol):
    """Reads an answer with status 200. What it raises ends the exchange, and is raised by `post`."""

    def begin(self) -> None:
        """The head of the answer has come."""

    def piece(self, data: bytes) -> bool:
        """Takes the next piece, however it was cut on its way; true where nothing after it matters."""

    def end(self) -> None:
        """The answer is whole."""


def allow_many_connections() -> None:
    """Lets this process have as many open files as it may: each request in flight is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def post(url: str, path: str, headers: dict[str, str], body: bytes, reader: Reader) -> None:
    """Sends one POST request on a connection of its own and reads the answer.

    A kept connection that the server is just closing would look like a server that hung up.

    Args:
        url: The server's base URL, ``http://HOST:PORT``.
        path: Path on the server.
        headers: Further headers; host, type and length are set.
        body: JSON.
        reader: Reads the answer.

    Raises:
        ConnectionRefusedError: Nobody listens.
        ConnectionBrokenError: The answer ended too soon.
        HttpStatusError: The status is not 200.
        NoSocketError: This machine gave no socket.
        asyncio.CancelledError: The caller was cancelled.
    """
    parts = urlsplit(url)
    head = [f"POST {path} HTTP/1.1", f"host: {parts.netloc}", "content-type: application/json"]
    head += [f"content-length: {len(body)}", "connection: close"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    message = "\r\n".join([*head, "", ""]).encode("ascii") + body
    loop = asyncio.get_running_loop()
    exchange = _Exchange(message, reader, loop.create_future())
    # a caller that is cancelled while it connects never asks how the exchange ended
    exchange.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await loop.create_connection(lambda: exchange, parts.hostname or "", parts.port or 80)
    except ConnectionRefusedError:
        raise
    except OSError as error:
        if error.errno in _NO_SOCKET:
            raise NoSocketError(
                f"no connection could be made: {error}",
                where=url,
                advice="Raise the limit of open files (ulimit -n), or keep fewer requests in flight.",
            ) from error
        raise ConnectionBrokenError(f"{type(error).__name__}: {error}") from error
    try:
        await exchange.ended
    finally:
        exchange.abort()


class _Exchange(asyncio.Protocol):
    def __init__(self, message: bytes, reader: Reader, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self._message = message
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._status: int | None = None
        self._whole = False
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """Closes the connection at once, whatever is still under way."""
        if self._transport is not None:
            self._transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            self._parser.feed_data(data)
            self._hand_on()
        except httptools.HttpParserError as error:
            self._fail(ConnectionBrokenError(f"not HTTP: {error}"))
        except Exception as error:  # raised where the exchange is awaited
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"{type(exc).__name__}: {exc}" if exc else "the server hung up before its answer was complete"
        self._fail(ConnectionBrokenError(why))

    # what the parser calls

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status == 200:
            self._reader.begin()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._whole = True

    def _hand_on(self) -> None:
        if self._status == 200:
            pieces, self._pieces = self._pieces, []
            complete = any(map(self._reader.piece, pieces))
            if self._whole and not complete:
                self._reader.end()
                complete = True
            if complete:
                self.ended.set_result(None)
        elif self._status is not None and self._whole:
            text = b"".join(self._pieces)[:_MOST_ERROR_TEXT].decode(errors="replace")
            self._fail(HttpStatusError(self._status, text))

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
