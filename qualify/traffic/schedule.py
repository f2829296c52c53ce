"""When the requests of a round reach the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from qualify.errors import MachineryError, UsageError
from qualify.loopback import http_client
from qualify.scenario import Arrival

_ANSWER_WITHIN_S = 30.0
_UNKNOWN_ENDPOINT = (404, 405)
# vLLM sends a stream's headers from the very task that then puts the request into the engine's queue, with
# nothing in between but the handling of this one request; the next one is sent after that.
_INTO_QUEUE_S = 0.05


@dataclass(frozen=True, slots=True)
class Sending:
    """One request of a round, ready to be sent.

    Attributes:
        send: Sends it and returns when it has ended.
        accepted: Set once the server has begun to answer, or the request has ended.
    """

    send: Callable[[], Awaitable[None]]
    accepted: asyncio.Event


async def send_round(arrival: Arrival, sendings: Sequence[Sending], url: str) -> None:
    """Sends the requests of a round and waits until all have ended.

    Args:
        arrival: When they arrive.
        sendings: In sending order.
        url: The server, which is paused and resumed where arrival is ``held``.

    Raises:
        UsageError: The server has no way of being paused.
        MachineryError: It fails to pause or resume.
        asyncio.CancelledError: The caller was cancelled; all requests have ended then.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        if arrival.kind == "held":
            async with _held(url):
                for sending in sendings:
                    tasks.append(asyncio.create_task(_sent(sending, 0)))
                    await sending.accepted.wait()
                    await asyncio.sleep(_INTO_QUEUE_S)
        else:
            offsets = arrival.offsets_s or (0.0,) * len(sendings)
            for sending, offset in zip(sendings, offsets, strict=True):
                tasks.append(asyncio.create_task(_sent(sending, offset)))
        await asyncio.gather(*tasks)
    except BaseException as error:
        why = error.args if isinstance(error, asyncio.CancelledError) else ("the round was given up",)
        for task in tasks:
            task.cancel(*why)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _sent(sending: Sending, after_s: float) -> None:
    try:
        await asyncio.sleep(after_s)
        await sending.send()
    finally:
        sending.accepted.set()


@asynccontextmanager
async def _held(url: str) -> AsyncIterator[None]:
    async with http_client(url, timeout_s=_ANSWER_WITHIN_S) as client:
        await _post(client, "/pause", {"mode": "keep"})
        try:
            yield
        except BaseException:
            # what is wrong is already known; a server that was only paused must not stay so
            with contextlib.suppress(MachineryError, UsageError):
                await _post(client, "/resume", {})
            raise
        await _post(client, "/resume", {})


async def _post(client: httpx2.AsyncClient, path: str, parameters: dict[str, str]) -> None:
    where = str(client.base_url)
    try:
        response = await client.post(path, params=parameters)
    except httpx2.TransportError as error:
        raise MachineryError(f"POST {path} was not answered ({type(error).__name__})", where=where) from error
    if response.status_code in _UNKNOWN_ENDPOINT:
        raise UsageError(
            f"POST {path} was answered with {response.status_code}",
            where=where,
            advice="Arrival 'held' needs a server with VLLM_SERVER_DEV_MODE=1; 'together' needs nothing.",
        )
    if response.status_code != 200:
        raise MachineryError(f"POST {path} was answered with {response.status_code}", where=where)
