"""Sends one request to a completions server, once, and turns whatever happens into an answer or a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import openai

from qualify.loopback import http_client
from qualify.traffic.answer import Answer, MalformedAnswerError, ServerSaidError
from qualify.transcript import RequestFailure

_LONGEST_MESSAGE = 300
_DATA = "data:"
_DONE = "[DONE]"


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


@asynccontextmanager
async def open_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Opens a client for a server on loopback.

    Args:
        url: The server's base URL.

    Yields:
        A client that never retries.
    """
    http = http_client(url, timeout_s=None)
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=None, http_client=http
    ) as client:
        yield client


async def complete(
    client: openai.AsyncOpenAI,
    model: str,
    request: CompletionRequest,
    exchange: Exchange,
    *,
    on_accepted: Callable[[], None],
    on_tokens: Callable[[int], None],
) -> None:
    """Sends a request and reads its answer. Never raises for what the server does.

    Args:
        client: From `open_client`.
        model: Served name.
        request: The request.
        exchange: Filled in as the answer comes, so that a cancelled caller still has what came.
        on_accepted: Called once the server has begun to answer. A stream's first bytes leave vLLM just before
            the request enters the engine's queue.
        on_tokens: Called with the number of tokens of each piece.

    Raises:
        asyncio.CancelledError: The caller was cancelled.
    """
    try:
        async with asyncio.timeout(request.deadline_s):
            await _exchange(client, model, request, exchange.answer, on_accepted, on_tokens)
        exchange.failure = _incomplete(request, exchange.answer)
    except TimeoutError:
        exchange.failure = _failure("timeout", f"not complete after {request.deadline_s:g} s")
    except MalformedAnswerError as error:
        exchange.failure = _failure("malformed", str(error))
    except ServerSaidError as error:
        exchange.failure = _failure("http", f"error in mid-answer: {error}", error.status)
    except openai.APIStatusError as error:
        exchange.failure = _failure("http", error.response.text or error.message, error.status_code)
    except (openai.APIConnectionError, httpx2.RequestError) as error:
        exchange.failure = _connection_failure(error)


async def _exchange(
    client: openai.AsyncOpenAI,
    model: str,
    request: CompletionRequest,
    answer: Answer,
    on_accepted: Callable[[], None],
    on_tokens: Callable[[int], None],
) -> None:
    # The raw response is read: building the client's own objects would cost several times more for each
    # token than the rest of the harness, and they would let malformed answers through.
    async with client.completions.with_streaming_response.create(
        model=model,
        prompt=[],  # in extra_body instead: the client's conversion walks over every token
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        seed=request.seed,
        logprobs=request.top_logprobs,
        stream=request.stream,
        extra_headers={"X-Request-Id": request.server_request_id},
        extra_body=_extensions(request),
    ) as response:
        on_accepted()
        if not request.stream:
            on_tokens(answer.add(await response.read()))
            return
        async for line in response.iter_lines():
            if line.startswith(_DATA):
                data = line.removeprefix(_DATA).strip()
                if data == _DONE:
                    return
                on_tokens(answer.add(data))
        raise httpx2.RemoteProtocolError(f"the stream ended without {_DONE}")


def _extensions(request: CompletionRequest) -> dict[str, object]:
    extensions: dict[str, object] = {
        "prompt": list(request.prompt),
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if request.forced is not None:
        extensions["vllm_xargs"] = {"forced_token_ids": list(request.forced)}
    return extensions


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


def _connection_failure(error: Exception) -> RequestFailure:
    cause = error.__cause__ or error
    kind = "refused" if isinstance(cause, httpx2.ConnectError) else "disconnected"
    return _failure(kind, f"{type(cause).__name__}: {cause}")


def _failure(kind: str, message: str, status: int | None = None) -> RequestFailure:
    return RequestFailure(kind=kind, message=message[:_LONGEST_MESSAGE], status=status)
