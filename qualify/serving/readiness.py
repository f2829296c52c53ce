"""Waiting for a server, composed from small conditions with one time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx2
import msgspec

from qualify.loopback import http_client
from qualify.serving.launcher import Exit, Server

_INTERVAL_S = 0.2
# A server that is busy loading may accept a connection and answer late.
_ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of one condition.

    Attributes:
        ok: It holds.
        why: What is still missing.
        final: It will never hold; waiting longer is useless.
    """

    ok: bool
    why: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitProgress:
    """Told about twice a second while a server starts.

    Attributes:
        elapsed_s: Seconds since the start.
        waiting_for: What is still missing.
        last_line: Last line of the server's log.
    """

    elapsed_s: float
    waiting_for: str
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How the wait ended.

    Attributes:
        ready: All conditions hold.
        elapsed_s: Seconds that it took.
        why: What was missing last.
        final: A condition said that it will never hold.
        exit: What was seen of the server's end, where it ended meanwhile.
    """

    ready: bool
    elapsed_s: float
    why: str = ""
    final: bool = False
    exit: Exit | None = None


Condition = Callable[[httpx2.AsyncClient], Awaitable[Check]]


async def healthy(client: httpx2.AsyncClient) -> Check:
    """``/health`` answers with 200."""
    try:
        response = await client.get("/health")
    except httpx2.TransportError as error:
        return Check(ok=False, why=f"/health does not answer ({type(error).__name__})")
    return Check(response.status_code == 200, f"/health answers {response.status_code}")


async def is_healthy(url: str) -> bool:
    """Asks a server for ``/health`` once.

    Args:
        url: Its base URL.
    """
    async with http_client(url, timeout_s=_ANSWER_WITHIN_S) as client:
        return (await healthy(client)).ok


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def serves(name: str) -> Condition:
    """Makes the condition that the server lists a model by this name.

    Args:
        name: The served name.
    """

    async def check(client: httpx2.AsyncClient) -> Check:
        try:
            response = await client.get("/v1/models")
            names = [model.id for model in msgspec.json.decode(response.content, type=_Models).data]
        except httpx2.TransportError as error:
            return Check(ok=False, why=f"/v1/models does not answer ({type(error).__name__})")
        except msgspec.DecodeError:
            return Check(ok=False, why=f"/v1/models answers {response.status_code} without a list of models")
        listed = ", ".join(names) or "nothing"
        return Check(name in names, f"it serves {listed}, not {name}", final=bool(names))

    return check


async def wait_until_ready(
    server: Server,
    conditions: Sequence[Condition],
    *,
    within_s: float,
    progress: Callable[[WaitProgress], None],
) -> Readiness:
    """Waits until all conditions hold, the server ends, or time is up.

    Args:
        server: The server.
        conditions: Tried in order; the first that does not hold is what is waited for.
        within_s: The one time-out for all of them.
        progress: Told about every attempt.

    Returns:
        How the wait ended.
    """
    started = time.monotonic()
    async with http_client(server.url, timeout_s=_ANSWER_WITHIN_S) as client:
        while True:
            exit_seen = server.ended()
            check = await _first_unmet(client, conditions) if exit_seen is None else Check(ok=False)
            elapsed = time.monotonic() - started
            if exit_seen or check.ok or check.final or elapsed >= within_s:
                return Readiness(
                    ready=check.ok, elapsed_s=elapsed, why=check.why, final=check.final, exit=exit_seen
                )
            progress(WaitProgress(elapsed_s=elapsed, waiting_for=check.why, last_line=server.last_line()))
            await asyncio.sleep(_INTERVAL_S)


async def _first_unmet(client: httpx2.AsyncClient, conditions: Sequence[Condition]) -> Check:
    for condition in conditions:
        check = await condition(client)
        if not check.ok:
            return check
    return Check(ok=True)
