"""Ctrl-C and SIGTERM: what they end in an orderly way, and what they must not cut short.

Both ask for the same: stop, keep what is there, say 130. Asking twice asks for nothing more. Everything that
waits for a server to end has a limit of its own (``stop_within_s``), so nothing here can wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Outcome = TypeVar("Outcome")
_Handler = Callable[[int, FrameType | None], object]


@dataclass(frozen=True, slots=True)
class Ran(Generic[Outcome]):
    """What became of something that could be interrupted.

    Attributes:
        outcome: What it gave.
        interrupted: True where the user asked it to end; it may have been whole by then.
    """

    outcome: Outcome
    interrupted: bool


def run_interruptible(serving: Coroutine[None, None, Outcome]) -> Ran[Outcome]:
    """Runs something that serves in an event loop of its own, in which SIGTERM does what Ctrl-C does.

    Args:
        serving: Is cancelled by each of them, and gives its outcome nevertheless (`to_the_end`).

    Returns:
        Its outcome, and whether it was interrupted.
    """
    return asyncio.run(_interruptible(serving))


async def _interruptible(serving: Coroutine[None, None, Outcome]) -> Ran[Outcome]:
    task = asyncio.ensure_future(serving)
    loop = asyncio.get_running_loop()
    asked = False

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        # by way of the loop: a task that is cancelled while it runs would lose an outcome it already has
        loop.call_soon_threadsafe(task.cancel)

    with _handled(ask):
        outcome = await task
    return Ran(outcome, asked)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back until something short is done.

    Raises:
        KeyboardInterrupt: After it, if one of them came meanwhile.
    """
    asked = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    with _handled(note):
        yield
    if asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handled(handler: _Handler) -> Iterator[None]:
    # one call puts each handler back, so that at no moment the system's own applies, which ends the process
    before = [(number, signal.signal(number, handler)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


async def to_the_end(work: Awaitable[Outcome]) -> Outcome:
    """Awaits something that must not be cut short, however often its caller is cancelled meanwhile.

    Args:
        work: Ends by itself in limited time.

    Returns:
        Its outcome. A cancellation that came meanwhile is forgotten: who asked knows that he did.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()
