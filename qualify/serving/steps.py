"""Reads what a server's step recorder wrote: which request sat in which row of which engine step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from qualify.errors import EvidenceError
from qualify.jsonlines import Int, open_lines
from qualify.steps import NO_REPLAY, Step, StepMetadata, StepRow

# vLLM makes "cmpl-<X-Request-Id>-<prompt's index>-<eight random characters>" of the id that it is given.
_INTERNAL_ID = re.compile(r"^cmpl-(?P<id>.+)-0(-[0-9a-f]{8})?$")


class _Row(msgspec.Struct):
    request_id: str
    row: Int
    scheduled_tokens: Int
    computed_tokens: Int


class _Metadata(msgspec.Struct):
    crc32: int
    wrong_rows: tuple[int, ...]


class _Line(msgspec.Struct):
    step: int
    kind: str
    replay: str
    rows_replayed: int
    rows: list[_Row]
    padded_rows: Int | None = None
    metadata: _Metadata | None = None


_decode = msgspec.json.Decoder(_Line).decode


def server_request_id(internal_id: str) -> str:
    """The id that a request was sent with.

    Args:
        internal_id: The engine's id for it.

    Returns:
        The id sent; the engine's own where it was not made from one.
    """
    match = _INTERNAL_ID.match(internal_id)
    return match["id"] if match else internal_id


class StepLog:
    """A step log, read one step at a time.

    Attributes:
        torn: After reading: the log ends within a line, as a killed server or a cut file leaves it. That line
            is no step.
    """

    def __init__(self, path: Path) -> None:
        """Reads nothing yet.

        Args:
            path: One JSON line for each engine step; plain, or compressed (``.gz``).
        """
        self._path = path
        self.torn = False

    def __iter__(self) -> Iterator[Step]:
        """The steps in order; none where there is no file: the server recorded nothing.

        Raises:
            EvidenceError: A line is not a step, or steps are missing in between.
        """
        if not self._path.exists():
            return
        expected: int | None = None
        with open_lines(self._path) as log:
            for number, text in enumerate(log, start=1):
                if not text.endswith(b"\n"):
                    self.torn = True
                    return
                line = _decoded(text, self._path, number)
                if expected is not None and line.step != expected:
                    raise EvidenceError(
                        f"step {line.step} follows step {expected - 1}",
                        where=f"{self._path}:{number}",
                        advice="The step log is damaged, or two servers wrote it; run again.",
                    )
                expected = line.step + 1
                yield _step(line)


def _decoded(text: bytes, path: Path, number: int) -> _Line:
    try:
        return _decode(text)
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
    # the recorder names the arm's way of replaying in every step, also where it replayed no row
    replay = line.replay if line.rows_replayed else NO_REPLAY
    seen = line.metadata
    return Step(
        kind=line.kind,
        rows=tuple(rows),
        replay=replay,
        padded_rows=line.padded_rows,
        metadata=StepMetadata(crc32=seen.crc32, wrong_rows=seen.wrong_rows) if seen else None,
    )
