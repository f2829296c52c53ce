"""A server that costs next to nothing, to measure clients against: ``python -m qualify.bench.stand_in``.

It answers streamed completion requests with chunks like vLLM's, made beforehand, one token of every running
request a step. What a request asks for (top logprobs, token ids) it gets, so that each client has to read
just what it asked for. When the first of the expected requests begins and the last ends, it says so on its
standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass

CHUNKS = 512
"""Different chunks of each kind."""

VOCABULARY = 32_000
_MOST_UNSENT = 65_536
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_MODELS = json.dumps({"object": "list", "data": [{"id": "bench", "object": "model"}]}).encode()


@dataclass(frozen=True)
class Kind:
    """What a request asks of each chunk.

    Attributes:
        top: Most probable tokens.
        token_ids: Whether ids are wanted, beside each token and in place of its text.
    """

    top: int
    token_ids: bool


@dataclass
class _Stream:
    transport: asyncio.Transport
    chunks: list[bytes]
    left: int
    first: bytes
    last: bytes
    usage: bytes
    at: int


class _Pace:
    """All running streams, and the chunks that they are fed from."""

    def __init__(self, expected: int, step_s: float) -> None:
        self.expected = expected
        self.step_s = step_s
        self.begun = self.ended = 0
        self.streams: list[_Stream] = []
        self._chunks: dict[Kind, list[bytes]] = {}

    def framed(self, kind: Kind) -> list[bytes]:
        if kind not in self._chunks:
            self._chunks[kind] = [_framed(chunk) for chunk in chunks(kind)]
        return self._chunks[kind]

    def begin(self, transport: asyncio.Transport, body: dict[str, object]) -> None:
        asked = body.get("logprobs")
        kind = Kind(asked if isinstance(asked, int) else -1, bool(body.get("return_token_ids")))
        ring = self.framed(kind)
        dice = random.Random(self.begun)
        prompt = body["prompt"] if kind.token_ids and isinstance(body["prompt"], list) else None
        count = body["max_tokens"]
        assert isinstance(count, int)
        options = body.get("stream_options")
        wants_usage = isinstance(options, dict) and options.get("include_usage")
        if not self.begun:
            print("first", time.time(), flush=True)
        self.begun += 1
        transport.write(_HEAD)
        self.streams.append(
            _Stream(
                transport,
                ring,
                count,
                _framed(_chunk(kind, dice, None, prompt=prompt)),
                _framed(_chunk(kind, dice, "length")),
                _usage(count) if wants_usage else b"",
                dice.randrange(CHUNKS),
            )
        )

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self.step_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            for stream in self.streams:
                self._step(stream)
            self.streams = [stream for stream in self.streams if stream.left]

    def _step(self, stream: _Stream) -> None:
        if stream.transport.is_closing():
            stream.left = 0
            return
        if stream.transport.get_write_buffer_size() > _MOST_UNSENT:
            return  # its client does not keep up
        stream.left -= 1
        stream.at = (stream.at + 1) % CHUNKS
        if stream.first:
            stream.transport.write(stream.first)
            stream.first = b""
        elif stream.left:
            stream.transport.write(stream.chunks[stream.at])
        else:
            done = _framed("[DONE]") + b"0\r\n\r\n"
            stream.transport.write(stream.last + stream.usage + done)
            self.ended += 1
            if self.ended == self.expected:
                print("last", time.time(), flush=True)


def chunks(kind: Kind) -> list[str]:
    """The chunks that are sent round and round, from anywhere; each has another token.

    Args:
        kind: What was asked for.
    """
    dice = random.Random(7)
    emitted = dice.sample(range(VOCABULARY), CHUNKS)
    return [_chunk(kind, dice, None, token=token) for token in emitted]


def _chunk(
    kind: Kind, dice: random.Random, finish: str | None, *, token: int = 0, prompt: object = None
) -> str:
    ids = [token, *(other for other in dice.sample(range(VOCABULARY), max(kind.top, 1)) if other != token)]
    ids = ids[: max(kind.top, 1)]
    names = [f"token_id:{one}" if kind.token_ids else f" t{one}" for one in ids]
    values = sorted((-dice.expovariate(0.2) for _ in ids), reverse=True)
    logprobs = {
        "text_offset": [dice.randrange(2000)],
        "token_logprobs": values[:1],
        "tokens": names[:1],
        "top_logprobs": [dict(zip(names, values, strict=True))],
    }
    choice: dict[str, object] = {
        "index": 0,
        "text": f" t{ids[0]}",
        "logprobs": None if kind.top < 0 else logprobs,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids[:1] if kind.token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
    }
    return json.dumps(
        {
            "id": "cmpl-4f0a6f3c5ad44f6c8f5a1b6d9f6ed1c2",
            "object": "text_completion",
            "created": 1764580000,
            "model": "bench",
            "choices": [choice],
        }
    )


def _usage(count: int) -> bytes:
    usage = {"prompt_tokens": 32, "completion_tokens": count, "total_tokens": 32 + count}
    return _framed(
        json.dumps({"id": "cmpl-bench", "object": "text_completion", "choices": [], "usage": usage})
    )


def _framed(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


class _Connection(asyncio.Protocol):
    def __init__(self, pace: _Pace) -> None:
        self._pace = pace
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, body = self._came.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
        if len(body) < length:
            return
        self._came = b""
        if lines[0].startswith("post /v1/completions "):
            self._pace.begin(self._transport, json.loads(body))
        elif lines[0].startswith("post "):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            self._transport.write(answer % (len(_MODELS), _MODELS))


async def _serve(port: int, expected: int, step_s: float) -> None:
    pace = _Pace(expected, step_s)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(pace), "127.0.0.1", port)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await pace.run()


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--expected", type=int, required=True, help="requests after which it says 'last'")
    parser.add_argument("--step-s", type=float, default=0.005)
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.expected, options.step_s))


if __name__ == "__main__":
    main()
