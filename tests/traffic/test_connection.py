"""One HTTP exchange, against a server that sends the bytes it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from qualify.traffic.connection import ConnectionBrokenError, HttpStatusError, post

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Collect:
    """Takes pieces; complete with one that ends in a full stop."""

    def __init__(self) -> None:
        self.begun = False
        self.came = b""
        self.ended = False

    def begin(self) -> None:
        self.begun = True

    def piece(self, data: bytes) -> bool:
        self.came += data
        return self.came.endswith(b".")

    def end(self) -> None:
        self.ended = True


async def exchange(*sent: bytes, reader: Collect | None = None, stay: bool = False) -> tuple[Collect, bytes]:
    """What a reader got, and what the server was sent."""
    requests: list[bytes] = []

    async def answer(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        requests.append(await incoming.readuntil(b"\r\n\r\n") + await incoming.readexactly(2))
        for part in sent:
            outgoing.write(part)
            await asyncio.sleep(0.01)
        if stay:
            await incoming.read()
        outgoing.close()

    reader = reader or Collect()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(post(url, "/path", {"x-request-id": "a"}, b"{}", reader), 5)
    return reader, requests[0]


@pytest.mark.parametrize(
    "sent", [[HEAD + b"2\r\nab\r\n1\r\n.\r\n"], [HEAD[:20], HEAD[20:] + b"2\r", b"\na", b"b\r\n1\r\n.\r\n"]]
)
async def test_pieces_arrive_however_they_were_cut(sent: Sequence[bytes]) -> None:
    reader, request = await exchange(*sent, stay=True)
    assert reader.begun
    assert reader.came == b"ab."
    assert request.startswith(b"POST /path HTTP/1.1\r\n")
    assert b"\r\nx-request-id: a\r\n" in request
    assert b"\r\ncontent-length: 2\r\n" in request


async def test_whole_answer_ends_the_exchange() -> None:
    reader, _ = await exchange(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", stay=True)
    assert (reader.came, reader.ended) == (b"ab", True)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "hung up"),
        (HEAD + b"2\r\nab\r\n", "hung up"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", "hung up"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
    ],
)
async def test_answer_that_is_cut_or_no_http_is_broken(sent: bytes, said: str) -> None:
    with pytest.raises(ConnectionBrokenError, match=said):
        await exchange(sent)


async def test_other_status_is_told_with_what_the_server_said() -> None:
    reader = Collect()
    with pytest.raises(HttpStatusError, match="overloaded") as caught:
        await exchange(
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 10\r\n\r\noverloaded", reader=reader
        )
    assert caught.value.status == 503
    assert not reader.begun
    assert reader.came == b""


async def test_what_the_reader_raises_ends_the_exchange() -> None:
    class Refuses(Collect):
        def piece(self, data: bytes) -> bool:
            raise ValueError("no good")

    with pytest.raises(ValueError, match="no good"):
        await exchange(HEAD + b"2\r\nab\r\n", reader=Refuses(), stay=True)
