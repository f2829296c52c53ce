"""When the requests of a round reach the server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from qualify.errors import MachineryError, UsageError
from qualify.loopback import http_client
from qualify.scenario import After, Arrival
from qualify.scenario.arrival import HELD_EVERY_S

_ANSWER_WITHIN_S = 30.0
_UNKNOWN_ENDPOINT = (404, 405)


class Milestones:
    """How many tokens a request has received, and who waits for a number of them."""

    def __init__(self) -> None:
        self._count = 0
        self._ended = False
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def add(self, tokens: int) -> None:
        """So many tokens more have come."""
        self._count += tokens
        self._release()

    def end(self) -> None:
        """No more will come: whoever still waits is released, since no request is ever dropped."""
        self._ended = True
        self._release()

    async def reached(self, tokens: int) -> None:
        """Waits until so many tokens have come, or the request has ended."""
        event = asyncio.Event()
        self._waiting.append((tokens, event))
        self._release()
        await event.wait()

    def _release(self) -> None:
        if not self._waiting:
            return
        for tokens, event in self._waiting:
            if self._ended or tokens <= self._count:
                event.set()
        self._waiting = [item for item in self._waiting if not item[1].is_set()]


@dataclass(frozen=True, slots=True)
class Sending:
    """One request of a round, ready to be sent.

    Attributes:
        send: Sends it and returns when it has ended.
        accepted: Set once the server has begun to answer, or the request has ended.
        milestones: Told of the tokens that come.
        after: What it waits for.
    """

    send: Callable[[], Awaitable[None]]
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    milestones: Milestones = field(default_factory=Milestones)
    after: After | None = None


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
        await _start(arrival, sendings, url, tasks)
        await asyncio.gather(*tasks)
    except BaseException as error:
        why = error.args if isinstance(error, asyncio.CancelledError) else ("the round was given up",)
        for task in tasks:
            task.cancel(*why)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _start(
    arrival: Arrival, sendings: Sequence[Sending], url: str, tasks: list[asyncio.Task[None]]
) -> None:
    if arrival.kind == "held":
        async with _held(url):
            await _one_after_another([sending for sending in sendings if sending.after is None], tasks)
        tasks += [
            asyncio.create_task(_sent(sending, functools.partial(_due, sending.after, 0.0, sendings)))
            for sending in sendings
            if sending.after is not None
        ]
    elif arrival.kind == "blocker":
        await _one_after_another(sendings, tasks)
    elif arrival.concurrency is not None:
        waiting = iter(sendings)
        workers = min(arrival.concurrency, len(sendings))
        tasks += [asyncio.create_task(_each(waiting)) for _ in range(workers)]
    else:
        for sending, offset in zip(sendings, arrival.offsets(len(sendings)), strict=True):
            due = functools.partial(_due, sending.after, offset, sendings)
            tasks.append(asyncio.create_task(_sent(sending, due)))


async def _one_after_another(sendings: Sequence[Sending], tasks: list[asyncio.Task[None]]) -> None:
    """Sends each request once the one before is in the server's queue."""
    for sending in sendings:
        tasks.append(asyncio.create_task(_sent(sending)))
        await sending.accepted.wait()
        await asyncio.sleep(HELD_EVERY_S)


async def _each(waiting: Iterator[Sending]) -> None:
    for sending in waiting:
        await _sent(sending)


async def _due(after: After | None, offset_s: float, sendings: Sequence[Sending]) -> None:
    if after is None or after.seconds is not None:
        await asyncio.sleep(offset_s if after is None or after.seconds is None else after.seconds)
    elif after.request is not None and after.tokens is not None:
        await sendings[after.request].milestones.reached(after.tokens)


async def _sent(sending: Sending, due: Callable[[], Awaitable[None]] | None = None) -> None:
    try:
        if due is not None:
            await due()
        await sending.send()
    finally:
        sending.accepted.set()
        sending.milestones.end()


@asynccontextmanager
async def _held(url: str) -> AsyncIterator[None]:
    async with http_client(url, timeout_s=_ANSWER_WITHIN_S) as client:
        # without clear_cache=false vLLM empties its prefix cache here, whatever its documentation says of
        # mode=keep, and with it what an earlier phase has filled in
        await _post(client, "/pause", {"mode": "keep", "clear_cache": "false"})
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
