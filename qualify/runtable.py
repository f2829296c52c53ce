"""One run's transcripts as arrays, so that a million positions are judged without a million objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qualify.transcript import MINUS_INFINITY, RequestFailure, RunKey, Transcript

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

NO_TOKEN = -1
"""Fills `RunTable.top_ids` where a position lists fewer tokens than the widest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A transcript without its tokens; see `qualify.transcript.Transcript` for the fields they share.

    Attributes:
        complete: The transcript was complete: every token came with its logprobs.
        start: First position of the request in the run's arrays.
        length: Tokens that it emitted.
    """

    request_id: str
    server_request_id: str
    scenario: str
    phase: str
    index: int
    judged: bool
    prompt_sha256: str
    context_tokens: int
    max_tokens: int
    forced_sha256: str | None
    finish_reason: str | None
    failure: RequestFailure | None
    sent_s: float
    first_token_s: float | None
    finished_s: float
    complete: bool
    start: int
    length: int

    @property
    def positions(self) -> slice:
        """The request's positions in the run's arrays."""
        return slice(self.start, self.start + self.length)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunTable:
    """One run as arrays over its P emitted tokens; K is the widest list of most probable tokens.

    Single precision is what servers compute logprobs in, so equal values stay equal and different ones
    different.

    Attributes:
        key: The run.
        heads: Its requests, sorted by request id.
        token_ids: int32 [P], emitted tokens.
        logprobs: float32 [P], natural-log probability of the emitted token; NaN where NaN or missing.
        top_ids: int32 [P, K], ids of the most probable tokens, best first; `NO_TOKEN` where none is listed.
        top_logprobs: float32 [P, K], their natural-log probabilities; NaN where NaN or not listed.
        duplicates: Ids of requests that came more than once; the first is kept.
    """

    key: RunKey
    heads: tuple[RequestHead, ...]
    token_ids: Tokens
    logprobs: Floats
    top_ids: Tokens
    top_logprobs: Floats
    duplicates: tuple[str, ...]


class _Columns:
    """Growing arrays of one run. `array` grows in place, where concatenation would need twice the memory."""

    def __init__(self) -> None:
        self.width = 0
        self.token_ids, self.logprobs = array("i"), array("f")
        self.top_ids, self.top_logprobs = array("i"), array("f")

    @property
    def positions(self) -> int:
        return len(self.token_ids)

    def add(self, transcript: Transcript) -> None:
        length = len(transcript.token_ids)
        widest = max((len(ids) for ids in transcript.top_ids[:length]), default=0)
        if widest > self.width:
            self._widen(widest)
        self.token_ids.extend(transcript.token_ids)
        self.logprobs.frombytes(_floats([transcript.logprobs[:length]], 1, length).tobytes())
        ids = np.full((length, self.width), NO_TOKEN, dtype=np.int32)
        for position, listed in enumerate(transcript.top_ids[:length]):
            ids[position, : len(listed)] = listed
        self.top_ids.frombytes(ids.tobytes())
        self.top_logprobs.frombytes(_floats(transcript.top_logprobs[:length], length, self.width).tobytes())

    def _widen(self, width: int) -> None:
        for column, fill in ((self.top_ids, NO_TOKEN), (self.top_logprobs, np.nan)):
            old = np.array(column).reshape(self.positions, self.width)
            new = np.pad(old, ((0, 0), (0, width - self.width)), constant_values=fill)
            del column[:]
            column.frombytes(new.tobytes())
        self.width = width


def _floats(rows: Sequence[Sequence[float | None]], height: int, width: int) -> Floats:
    block = np.full((height, width), np.nan, dtype=np.float32)
    if len(rows) == height and all(len(row) == width for row in rows):
        block[:] = np.array(rows, dtype=np.float32).reshape(height, width)
    else:
        for number, row in enumerate(rows):
            kept = row[:width]
            block[number, : len(kept)] = np.array(kept, dtype=np.float32)
    block[block <= MINUS_INFINITY] = -np.inf
    return block


def collect(key: RunKey, transcripts: Iterable[Transcript]) -> RunTable:
    """Turns the transcripts of one run into arrays, one transcript at a time.

    Args:
        key: The run.
        transcripts: Its transcripts, in any order.

    Returns:
        The run. Of a request that comes more than once the first is kept and the id remembered.
    """
    columns = _Columns()
    heads: dict[str, RequestHead] = {}
    duplicates: set[str] = set()
    for transcript in transcripts:
        if transcript.request_id in heads:
            duplicates.add(transcript.request_id)
            continue
        heads[transcript.request_id] = _head(transcript, columns.positions)
        columns.add(transcript)
    shape = (columns.positions, columns.width)
    return RunTable(
        key=key,
        heads=tuple(heads[request_id] for request_id in sorted(heads)),
        token_ids=np.frombuffer(columns.token_ids, dtype=np.int32) if shape[0] else np.zeros(0, np.int32),
        logprobs=np.frombuffer(columns.logprobs, dtype=np.float32) if shape[0] else np.zeros(0, np.float32),
        top_ids=_matrix(columns.top_ids, np.int32, shape),
        top_logprobs=_matrix(columns.top_logprobs, np.float32, shape),
        duplicates=tuple(sorted(duplicates)),
    )


def _matrix(column: array, dtype: type, shape: tuple[int, int]) -> npt.NDArray:  # type: ignore[type-arg]
    if not len(column):
        return np.zeros(shape, dtype=dtype)
    return np.frombuffer(column, dtype=dtype).reshape(shape)


def _head(transcript: Transcript, start: int) -> RequestHead:
    return RequestHead(
        request_id=transcript.request_id,
        server_request_id=transcript.server_request_id,
        scenario=transcript.scenario,
        phase=transcript.phase,
        index=transcript.index,
        judged=transcript.judged,
        prompt_sha256=transcript.prompt_sha256,
        context_tokens=transcript.context_tokens,
        max_tokens=transcript.max_tokens,
        forced_sha256=transcript.forced_sha256,
        finish_reason=transcript.finish_reason,
        failure=transcript.failure,
        sent_s=transcript.sent_s,
        first_token_s=transcript.first_token_s,
        finished_s=transcript.finished_s,
        complete=transcript.complete,
        start=start,
        length=len(transcript.token_ids),
    )


def duration_s(heads: Sequence[RequestHead]) -> float:
    """Seconds from when the first of these requests was sent until the last one was done.

    Args:
        heads: Requests of one run, at least one.
    """
    return max(head.finished_s for head in heads) - min(head.sent_s for head in heads)


def reduce_requests(
    values: npt.NDArray[Any], heads: Sequence[RequestHead], how: np.ufunc, empty: float
) -> npt.NDArray[Any]:
    """Reduces a run's positions to its requests.

    Args:
        values: [P], one value for each position of the run.
        heads: U requests of the run.
        how: The reduction, e.g. ``np.add``.
        empty: Result for requests without a position.

    Returns:
        [U], of the values' type.
    """
    starts = np.array([head.start for head in heads], dtype=np.int64)
    lengths = np.array([head.length for head in heads], dtype=np.int64)
    result = np.full(len(heads), empty, dtype=values.dtype)
    some = np.flatnonzero(lengths > 0)
    order = some[np.argsort(starts[some], kind="stable")]
    if len(order):
        # Between a request's end and the next one's start lie other requests: cut them off by a second edge.
        edges = np.stack([starts[order], starts[order] + lengths[order]], axis=1).ravel()
        padded = np.append(values, values[-1:])
        result[order] = how.reduceat(padded, edges)[::2]
    return result
