"""Starts the servers of several arms side by side and has them driven one after another.

What counts is what an arm does alone. A server that does not start beside others, or that runs out of memory
beside them, says nothing of itself: it has to be served again, alone, before its end means anything.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qualify.interrupts import Ran, run_interruptible, to_the_end
from qualify.record import ArmRecord, ArmState
from qualify.serving.launcher import Launcher, Server
from qualify.serving.readiness import WaitProgress
from qualify.serving.session import Session, Use, serve_async
from qualify.serving.telemetry import watched_gpus

_BESIDE_OTHERS = frozenset({ArmState.START_FAILED, ArmState.NEVER_READY, ArmState.MACHINERY})
_MEMORY = re.compile(r"out of memory|cannot allocate memory|can't allocate memory|lack of memory", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmServer:
    """One arm as it is to be served.

    Attributes:
        session: What is served.
        launcher: How its server is got; its port must be its own.
        prepare: What is asked of its server as soon as that is ready; no load.
        use: Drives it, see `qualify.serving.session.serve_async`.
        directory: Its directory in the bundle.
        progress: Told about the wait for readiness.
    """

    session: Session
    launcher: Launcher
    prepare: Callable[[Server], Awaitable[object]]
    use: Use
    directory: Path
    progress: Callable[[WaitProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What became of arms that were served side by side.

    Attributes:
        records: The first arms, in order, up to the first that did not serve to its end. They stand.
        repeat: The attempt of the arm after those, which does not count: it has to be served alone, and so
            have those behind it, which were stopped. None where all arms have their record, or the last one
            of `records` ends the run.
    """

    records: tuple[ArmRecord, ...]
    repeat: ArmRecord | None = None


def serve_alone(arm: ArmServer) -> Ran[ArmRecord]:
    """Starts one arm's server, has it driven, and stops it.

    Ctrl-C and SIGTERM stop it in an orderly way; the arm comes back as ``INTERRUPTED``, or with the end that
    was known already where its server was just being stopped.

    Args:
        arm: The arm.

    Returns:
        What became of it, and whether the user asked to stop.

    Raises:
        UsageError: The launcher was asked for something impossible.
        QualifyError: Whatever the arm's `use` raises; the server has been stopped then.
    """
    turn = _Turn()
    turn.begins.set()
    return run_interruptible(_served(arm, turn))


def serve_together(arms: Sequence[ArmServer], ended: Callable[[ArmRecord], None]) -> Ran[Together]:
    """Starts all servers at once and has them driven one after another, once each is ready or has ended.

    Ctrl-C and SIGTERM stop all of them; the arm whose turn it was comes back as with `serve_alone`.

    Args:
        arms: In the order in which they are driven.
        ended: Told about each record that stands, as soon as its server has been stopped.

    Returns:
        What became of them, and whether the user asked to stop. All servers have been stopped.

    Raises:
        UsageError: A launcher was asked for something impossible.
        QualifyError: Whatever an arm's `use` raises.
    """
    return run_interruptible(serve_together_async(arms, ended))


async def serve_together_async(arms: Sequence[ArmServer], ended: Callable[[ArmRecord], None]) -> Together:
    """As `serve_together`, within a running event loop."""
    turns = [_Turn() for _ in arms]
    tasks = [asyncio.create_task(_served(arm, turn)) for arm, turn in zip(arms, turns, strict=True)]
    records: list[ArmRecord] = []
    try:
        await _started(tasks, turns)
        for task, turn in zip(tasks, turns, strict=True):
            turn.begins.set()
            record = await asyncio.shield(task)
            others = len(records) + 1 < len(tasks)
            if _says_nothing(record, driven=turn.driven, beside=others):
                return Together(records=tuple(records), repeat=record)
            records.append(record)
            ended(record)
            if record.state is not ArmState.SERVED:
                break
    except asyncio.CancelledError:
        for record in await _interrupted(tasks[len(records) :], turns[len(records) :]):
            records.append(record)
            ended(record)
    finally:
        await _stopped(tasks)
    return Together(records=tuple(records))


class _Turn:
    """One arm's place in the order.

    Attributes:
        settled: Its server is ready or has ended.
        begins: It may be driven.
        driven: Its driving has begun.
    """

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.begins = asyncio.Event()
        self.driven = False


async def _served(arm: ArmServer, turn: _Turn) -> ArmRecord:
    async def use(server: Server) -> str | None:
        await arm.prepare(server)
        turn.settled.set()
        await turn.begins.wait()
        turn.driven = True
        return await arm.use(server)

    try:
        with watched_gpus(arm.directory):
            return await serve_async(arm.session, arm.launcher, use, progress=arm.progress)
    finally:
        turn.settled.set()


async def _started(tasks: Sequence[asyncio.Task[ArmRecord]], turns: Sequence[_Turn]) -> None:
    """Waits until every server is ready or has ended, or the first, which all the others need, has ended."""

    async def every() -> None:
        for turn in turns:
            await turn.settled.wait()

    waiting = asyncio.create_task(every())
    try:
        await asyncio.wait({waiting, tasks[0]}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _interrupted(tasks: Sequence[asyncio.Task[ArmRecord]], turns: Sequence[_Turn]) -> list[ArmRecord]:
    """Records of the arms from the one whose turn it was: as a rule that one's, which was interrupted."""
    records = []
    for task, turn in zip(tasks, turns, strict=True):
        task.cancel()
        record = await to_the_end(task)
        if _says_nothing(record, driven=turn.driven, beside=True):
            record = replace(record, state=ArmState.INTERRUPTED, detail="the run was interrupted")
        records.append(record)
        if record.state is not ArmState.SERVED:
            break
    return records


async def _stopped(tasks: Sequence[asyncio.Task[ArmRecord]]) -> None:
    for task in tasks:
        task.cancel()
    await to_the_end(asyncio.gather(*tasks, return_exceptions=True))


def _says_nothing(record: ArmRecord, *, driven: bool, beside: bool) -> bool:
    """True where the end may be due to the other servers.

    Args:
        record: The arm's record.
        driven: Its driving had begun.
        beside: Other servers were there to the end.
    """
    if not driven and record.state in _BESIDE_OTHERS | {ArmState.DIED}:
        return True
    said = "\n".join((record.detail, *record.log_tail))
    return beside and record.state is not ArmState.SERVED and _MEMORY.search(said) is not None
