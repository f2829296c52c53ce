"""Engine steps of one server, as its step recorder wrote them, and the same as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DECODE = "decode"
NO_REPLAY = "none"


def step_log(rank: int = 0) -> str:
    """Name of the step log that one rank of a server writes."""
    return f"steps.rank{rank}.jsonl" if rank else "steps.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One request's part in one engine step.

    Attributes:
        server_request_id: The id that the request was sent with.
        row: Row of the batch's decode metadata.
        computed_tokens: Tokens of the request that were in the KV cache before the step.
        scheduled_tokens: Tokens that the step computed for it.
    """

    server_request_id: str
    row: int
    computed_tokens: int
    scheduled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetadata:
    """The C128A decode rows of one step as they lay where a graph reads them.

    Attributes:
        crc32: Of their lengths and entries.
        wrong_rows: Rows that are not what the reference makes of the same step.
    """

    crc32: int
    wrong_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One engine step as the server's step recorder wrote it.

    Attributes:
        kind: ``decode`` (every row one query), ``prefill`` or ``mixed``.
        rows: Its rows, in row order.
        replay: What replayed it: ``none``, ``emulated replay``, or a graph mode.
        padded_rows: Rows of the graph that replayed it, padding included; None where unknown.
        metadata: Its C128A decode rows; None where nobody looked.
    """

    kind: str
    rows: tuple[StepRow, ...]
    replay: str
    padded_rows: int | None = None
    metadata: StepMetadata | None = None

    @property
    def replayed(self) -> bool:
        """True where something replayed the step or pieces of it."""
        return self.replay != NO_REPLAY


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepTable:
    """One arm's steps as arrays: S steps, E rows of all steps together.

    Attributes:
        decode: bool [S], every row of the step was one query.
        replayed: bool [S], something replayed the step or pieces of it.
        whole: bool [S], the plan's kind of replay replayed the step as a whole, metadata's readers included.
        rows: int32 [S], rows of the step.
        padded_rows: int32 [S], rows of the graph that replayed it; 0 where unknown.
        step: int32 [E], the step that the row belongs to.
        request: int32 [E], index into `server_request_ids`.
        row: int32 [E], row of the batch's decode metadata.
        computed: int32 [E], tokens in the KV cache before the step.
        reached: int32 [E], tokens in the KV cache after the step: computed plus scheduled.
        server_request_ids: The ids that occur.
    """

    decode: npt.NDArray[np.bool_]
    replayed: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.int32]
    padded_rows: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    request: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    computed: npt.NDArray[np.int32]
    reached: npt.NDArray[np.int32]
    server_request_ids: tuple[str, ...]


class StepCollector:
    """Turns steps into arrays, one at a time, while somebody else goes through them."""

    def __init__(self, replay: str) -> None:
        """Holds no step yet.

        Args:
            replay: The kind of replay that the plan says; another kind, or a replay in pieces, is none of it.
        """
        self._replay = replay
        self._decode, self._replayed, self._whole = array("b"), array("b"), array("b")
        self._rows, self._padded, self._step_of, self._request = (array("i") for _ in range(4))
        self._row, self._computed, self._reached = (array("i") for _ in range(3))
        self._known: dict[str, int] = {}

    def add(self, step: Step) -> None:
        """Takes the next step.

        Args:
            step: The step that ran after those taken before.
        """
        number = len(self._rows)
        self._decode.append(step.kind == DECODE)
        self._replayed.append(step.replayed)
        self._whole.append(step.replay == self._replay)
        self._rows.append(len(step.rows))
        self._padded.append(step.padded_rows or 0)
        for entry in step.rows:
            self._step_of.append(number)
            self._request.append(self._known.setdefault(entry.server_request_id, len(self._known)))
            self._row.append(entry.row)
            self._computed.append(entry.computed_tokens)
            self._reached.append(entry.computed_tokens + entry.scheduled_tokens)

    def table(self) -> StepTable:
        """All steps taken so far, as arrays."""
        return StepTable(
            decode=np.array(self._decode, dtype=bool),
            replayed=np.array(self._replayed, dtype=bool),
            whole=np.array(self._whole, dtype=bool),
            rows=np.array(self._rows, dtype=np.int32),
            padded_rows=np.array(self._padded, dtype=np.int32),
            step=np.array(self._step_of, dtype=np.int32),
            request=np.array(self._request, dtype=np.int32),
            row=np.array(self._row, dtype=np.int32),
            computed=np.array(self._computed, dtype=np.int32),
            reached=np.array(self._reached, dtype=np.int32),
            server_request_ids=tuple(self._known),
        )


def collect_steps(steps: Iterable[Step], replay: str) -> StepTable:
    """Turns steps into arrays, one at a time.

    Args:
        steps: One arm's steps in the order in which they ran.
        replay: The kind of replay that the plan says.

    Returns:
        The arrays.
    """
    collector = StepCollector(replay)
    for step in steps:
        collector.add(step)
    return collector.table()
