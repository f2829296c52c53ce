"""Serves one arm from start to stop and says what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from qualify.errors import MachineryError
from qualify.interrupts import to_the_end
from qualify.record import ArmRecord, ArmState
from qualify.serving.endings import Ending, classify, told_to_stop
from qualify.serving.launcher import Exit, Launcher, Server
from qualify.serving.readiness import (
    Readiness,
    WaitProgress,
    healthy,
    is_healthy,
    serves,
    wait_until_ready,
)
from qualify.transcript import Arm

_WATCH_EVERY_S = 0.2
# Between the first sight of an end and the verdict on it: the log's last lines and the exit code arrive.
_SETTLE_S = 0.5
# A main process that closes its socket first may take this long to be gone (stack dump, clean-up).
_GONE_WITHIN_S = 10.0
# A server that is attached to is said to be running already.
_ATTACHED_WITHIN_S = 10.0

Use = Callable[[Server], Awaitable[str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What is to be served.

    Attributes:
        arm: The arm.
        fault: The fault that is put in; control only.
        served_name: Name that the server must give its model.
        ready_within_s: Longest start.
    """

    arm: Arm
    fault: str | None
    served_name: str
    ready_within_s: float


async def serve_async(
    session: Session, launcher: Launcher, use: Use, *, progress: Callable[[WaitProgress], None]
) -> ArmRecord:
    """Starts a server, waits until it is ready, uses it, and stops it.

    Args:
        session: What is to be served.
        launcher: How the server is got.
        use: Drives it; gives None where all was driven, or why the server no longer answers. It is cancelled
            when the server ends, and may then still write down what it has.
        progress: Told about the wait for readiness.

    Returns:
        What became of the arm; a cancelled caller gets the record with ``INTERRUPTED``, or with the end that
        was known already where the server was just being stopped.

    Raises:
        UsageError: The launcher was asked for something impossible.
        QualifyError: Whatever `use` raises; the server has been stopped then.
    """
    try:
        server = launcher.start()
    except MachineryError as error:
        return ArmRecord(arm=session.arm, state=ArmState.MACHINERY, detail=str(error), fault=session.fault)
    started_s: float | None = None
    try:
        readiness = await wait_until_ready(
            server,
            (healthy, serves(session.served_name)),
            within_s=session.ready_within_s
            if server.observable
            else min(session.ready_within_s, _ATTACHED_WITHIN_S),
            progress=progress,
        )
        if readiness.ready:
            started_s = readiness.elapsed_s
            ending = await _used(server, use)
        else:
            ending = await _not_ready(server, readiness)
    except asyncio.CancelledError:
        ending = Ending(ArmState.INTERRUPTED, "the run was interrupted")
    finally:
        # an interrupted stop would leave neither a record nor, perhaps, an end of the server
        await to_the_end(server.stop())
    return ArmRecord(
        arm=session.arm,
        state=ending.state,
        detail=ending.detail,
        log_tail=() if ending.state is ArmState.SERVED else server.log_tail(),
        fault=session.fault,
        started_s=started_s,
        peak_rss_bytes=server.peak_rss_bytes,
    )


async def _not_ready(server: Server, readiness: Readiness) -> Ending:
    if readiness.exit:
        return await _settled(server, readiness.exit, ready=False)
    if readiness.final:
        return Ending(ArmState.MACHINERY, f"another server answers at {server.url}: {readiness.why}")
    if not server.observable:
        return Ending(ArmState.MACHINERY, f"there is no usable server at {server.url}: {readiness.why}")
    doing = f"; its last line: {last}" if (last := server.last_line()) else ""
    return Ending(
        ArmState.NEVER_READY, f"not ready after {readiness.elapsed_s:.0f} s: {readiness.why}{doing}"
    )


async def _used(server: Server, use: Use) -> Ending:
    task = asyncio.ensure_future(use(server))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_WATCH_EVERY_S)
            seen = server.ended()
            if seen and not task.done():
                ending = await _settled(server, seen, ready=True)
                await _cancelled(task, ending.detail)
                return ending
    except asyncio.CancelledError:
        await _cancelled(task, "interrupted by the user")
        raise
    trouble = task.result()
    if trouble and not server.observable:
        # a hang can be told from outside, an end cannot be explained
        state = ArmState.HUNG if await is_healthy(server.url) else ArmState.KILLED
        return Ending(state, f"{trouble}; what became of an attached server cannot be seen")
    seen = await _end_within(server, 0 if trouble is None else _GONE_WITHIN_S)
    if seen:
        return await _settled(server, seen, ready=True)
    if told := told_to_stop(server.log_lines()):
        return Ending(ArmState.KILLED, f"the server was told to stop: {told}")
    return Ending(ArmState.HUNG, trouble) if trouble else Ending(ArmState.SERVED, "")


async def _cancelled(task: asyncio.Future[str | None], why: str) -> None:
    task.cancel(why)
    await to_the_end(asyncio.wait({task}))
    if not task.cancelled():
        task.result()


async def _end_within(server: Server, seconds: float) -> Exit | None:
    deadline = asyncio.get_running_loop().time() + seconds
    while (seen := server.ended()) is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_WATCH_EVERY_S)
    return seen


async def _settled(server: Server, seen: Exit, *, ready: bool) -> Ending:
    await asyncio.sleep(_SETTLE_S)
    return classify(server.ended() or seen, server.log_lines(), ready=ready)
