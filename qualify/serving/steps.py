"""Reads what a server's step recorder wrote: which request sat in which row of which engine step."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import msgspec

from qualify.errors import EvidenceError
from qualify.record import Step, StepRow

# vLLM makes "cmpl-<X-Request-Id>-<prompt's index>-<eight random characters>" of the id that it is given.
_INTERNAL_ID = re.compile(r"^cmpl-(?P<id>.+)-0(-[0-9a-f]{8})?$")


class _Row(msgspec.Struct):
    request_id: str
    row: int
    scheduled_tokens: int
    computed_tokens: int


class _Line(msgspec.Struct):
    step: int
    kind: str
    replay: str
    rows: list[_Row]


def server_request_id(internal_id: str) -> str:
    """The id that a request was sent with.

    Args:
        internal_id: The engine's id for it.

    Returns:
        The id sent; the engine's own where it was not made from one.
    """
    match = _INTERNAL_ID.match(internal_id)
    return match["id"] if match else internal_id


def read_steps(path: Path) -> tuple[Step, ...]:
    """Reads a step log.

    Args:
        path: One JSON line for each engine step.

    Returns:
        The steps in order. A last line that was cut, as a killed server leaves it, is left out. Empty where
        there is no file: the server recorded nothing.

    Raises:
        EvidenceError: A line is not a step, or steps are missing in between.
    """
    if not path.exists():
        return ()
    lines = path.read_bytes().split(b"\n")
    # what stands after the last newline is empty, or was being written when the server ended
    steps = [_decoded(line, path, number) for number, line in enumerate(lines[:-1], start=1)]
    for number, (before, after) in enumerate(pairwise(steps), start=2):
        if after.step != before.step + 1:
            raise EvidenceError(
                f"step {after.step} follows step {before.step}",
                where=f"{path}:{number}",
                advice="The step log is damaged, or two servers wrote it; run again.",
            )
    return tuple(_step(line) for line in steps)


def _decoded(line: bytes, path: Path, number: int) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise EvidenceError(
            f"not an engine step ({error})",
            where=f"{path}:{number}",
            advice="The step log is damaged; run again.",
        ) from error


def _step(line: _Line) -> Step:
    rows = (
        StepRow(
            server_request_id=server_request_id(row.request_id),
            row=row.row,
            computed_tokens=row.computed_tokens,
            scheduled_tokens=row.scheduled_tokens,
        )
        for row in sorted(line.rows, key=lambda row: row.row)
    )
    return Step(kind=line.kind, rows=tuple(rows), replay=line.replay)
