"""Sends one request to a completions server, once, and turns whatever happens into an answer or a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from qualify.traffic.answer import Answer, MalformedAnswerError, ServerSaidError
from qualify.traffic.connection import ConnectionBrokenError, HttpStatusError, post
from qualify.transcript import RequestFailure

_LONGEST_MESSAGE = 300
_DATA = b"data:"
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What is asked of the server.

    Attributes:
        server_request_id: Sent as ``X-Request-Id``.
        prompt: Token ids.
        max_tokens: Tokens to generate; an end-of-sequence token does not end the answer.
        forced: Token ids that the server must emit; None where it chooses.
        temperature: 0 is greedy.
        top_logprobs: Most probable tokens returned at each position; 0 asks for the emitted token's alone.
        seed: Of the server's sampler.
        stream: Whether the answer is streamed.
        deadline_s: Seconds after which it counts as failed.
    """

    server_request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    forced: tuple[int, ...] | None
    temperature: float
    top_logprobs: int
    seed: int
    stream: bool
    deadline_s: float


@dataclass(slots=True)
class Exchange:
    """What became of a request so far.

    Attributes:
        answer: What came.
        failure: Why it is not complete.
    """

    answer: Answer
    failure: RequestFailure | None = None


async def complete(
    url: str,
    model: str,
    request: CompletionRequest,
    exchange: Exchange,
    *,
    on_accepted: Callable[[], None],
    on_tokens: Callable[[int], None],
) -> None:
    """Sends a request and reads its answer. Never raises for what the server does.

    Args:
        url: The server's base URL, on loopback.
        model: Served name.
        request: The request.
        exchange: Filled in as the answer comes, so that a cancelled caller still has what came.
        on_accepted: Called once the server has begun to answer. A stream's first bytes leave vLLM just before
            the request enters the engine's queue.
        on_tokens: Called with the number of tokens of each piece.

    Raises:
        NoSocketError: This machine gave no socket; the server was not asked.
        asyncio.CancelledError: The caller was cancelled.
    """
    kind = _Streamed if request.stream else _Whole
    reader = kind(exchange.answer, on_accepted, on_tokens)
    headers = {"x-request-id": request.server_request_id}
    try:
        async with asyncio.timeout(request.deadline_s):
            await post(url, "/v1/completions", headers, _body(model, request), reader)
        exchange.failure = _incomplete(request, exchange.answer)
    except TimeoutError:
        exchange.failure = _failure("timeout", f"not complete after {request.deadline_s:g} s")
    except MalformedAnswerError as error:
        exchange.failure = _failure("malformed", str(error))
    except ServerSaidError as error:
        exchange.failure = _failure("http", f"error in mid-answer: {error}", error.status)
    except HttpStatusError as error:
        exchange.failure = _failure("http", str(error), error.status)
    except ConnectionRefusedError as error:
        exchange.failure = _failure("refused", str(error))
    except ConnectionBrokenError as error:
        exchange.failure = _failure("disconnected", str(error))


class _Whole:
    """Reads an answer that comes as one body."""

    def __init__(
        self, answer: Answer, on_accepted: Callable[[], None], on_tokens: Callable[[int], None]
    ) -> None:
        self._answer = answer
        self._on_tokens = on_tokens
        self._came = b""
        self.begin = on_accepted

    def piece(self, data: bytes) -> bool:
        self._came += data
        return False

    def end(self) -> None:
        self._on_tokens(self._answer.add(self._came))


class _Streamed(_Whole):
    """Reads server-sent events, one chunk of the answer each."""

    def piece(self, data: bytes) -> bool:
        *lines, self._came = (self._came + data).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                body = line[len(_DATA) :].strip()
                if body == _DONE:
                    return True
                self._on_tokens(self._answer.add(body))
        return False

    def end(self) -> None:
        raise ConnectionBrokenError(f"the stream ended without {_DONE.decode()}")


def _body(model: str, request: CompletionRequest) -> bytes:
    asked: dict[str, object] = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "logprobs": request.top_logprobs,
        "stream": request.stream,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if request.forced is not None:
        asked["vllm_xargs"] = {"forced_token_ids": request.forced}
    return msgspec.json.encode(asked)


def _incomplete(request: CompletionRequest, answer: Answer) -> RequestFailure | None:
    if request.forced is not None:
        came = len(answer.token_ids)
        if tuple(answer.token_ids) != request.forced[:came]:
            return _failure("malformed", "the server did not emit the tokens that it was given")
    if len(answer.token_ids) != request.max_tokens:
        return _failure(
            "incomplete",
            f"{len(answer.token_ids)} of {request.max_tokens} tokens, finish reason {answer.finish_reason}",
        )
    if answer.finish_reason is None:
        return _failure("incomplete", "all tokens came, but no finish reason")
    return None


def _failure(kind: str, message: str, status: int | None = None) -> RequestFailure:
    return RequestFailure(kind=kind, message=message[:_LONGEST_MESSAGE], status=status)
