"""Signs of damage in what was written freely: runs of one token, loops, doubled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from qualify.runtable import RequestHead, RunTable

Numbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

BOS_RUN = 4
"""Beginning-of-sequence tokens in a row. No text has two; rows that turned to NaN emit nothing else."""

TOKEN_RUN = 8
"""The same token so many times in a row, as in a row of one character. A convention, like those below: the
baseline's own answers are held against it too."""

LONGEST_PERIOD = 32
"""Longest repeated stretch, in tokens, that is looked for."""

REPEATS = 4
"""An answer loops where its end repeats one stretch so many times."""

ENDS = "ends in a loop"
BOS = "has a run of BOS tokens"
RUN = "has a run of one token"
LIMIT = "was cut at the token limit"
STOP = "stopped by itself"
DOUBLED = "doubles tokens"
TRAITS = (BOS, RUN, ENDS, LIMIT, STOP, DOUBLED)


def traits(run: RunTable, heads: Sequence[RequestHead], bos: int | None) -> Mapping[str, Scores]:
    """Scores each request on every trait; more is worse.

    Args:
        run: A run decoded freely.
        heads: U requests of it.
        bos: Id of the beginning-of-sequence token; None where unknown.

    Returns:
        float64 [U] for each of `TRAITS`: 1 or 0, and the share of doubled tokens.
    """
    starts = np.array([head.start for head in heads], dtype=np.int64)
    lengths = np.array([head.length for head in heads], dtype=np.int64)
    tokens = run.token_ids
    same = _run_lengths(tokens, 1)
    longest = np.array([same[head.positions][1:].max(initial=0) for head in heads], dtype=np.int64)
    repeated = [(same[head.positions][1:] > 0).sum() for head in heads]
    is_bos = (
        np.where(tokens == bos, _run_lengths(tokens, 1) + 1, 0) if bos is not None else np.zeros(len(tokens))
    )
    found = {
        BOS: [_longest_inside(is_bos, head) >= BOS_RUN for head in heads],
        RUN: longest + 1 >= TOKEN_RUN,
        ENDS: _loops(tokens, starts, lengths),
        LIMIT: [head.finish_reason == "length" for head in heads],
        STOP: [head.finish_reason == "stop" for head in heads],
        DOUBLED: np.array(repeated, dtype=np.float64) / np.maximum(lengths - 1, 1),
    }
    return {name: np.asarray(values, dtype=np.float64) for name, values in found.items()}


def _longest_inside(streak: npt.NDArray[np.generic], head: RequestHead) -> int:
    """Longest streak that lies inside a request: its first token cannot continue the request before it."""
    inside = np.minimum(streak[head.positions], np.arange(1, head.length + 1))
    return int(inside.max(initial=0))


def _run_lengths(tokens: npt.NDArray[np.int32], period: int) -> Numbers:
    """int64 [P], for how many positions up to each one the token equals that `period` positions before."""
    equal = np.zeros(len(tokens), dtype=bool)
    equal[period:] = tokens[period:] == tokens[:-period]
    number = np.arange(len(tokens))
    broken = np.maximum.accumulate(np.where(equal, -1, number)) if len(tokens) else number
    return number - broken


def _loops(tokens: npt.NDArray[np.int32], starts: Numbers, lengths: Numbers) -> npt.NDArray[np.bool_]:
    loops = np.zeros(len(starts), dtype=bool)
    some = lengths > 0
    ends = starts + np.maximum(lengths, 1) - 1
    for period in range(2, LONGEST_PERIOD + 1):
        if period >= len(tokens):
            break
        repeated = np.minimum(_run_lengths(tokens, period)[ends], lengths - period)
        loops |= some & (repeated >= (REPEATS - 1) * period)
    return loops


def contains(tokens: npt.NDArray[np.int32], answer: Sequence[int]) -> bool:
    """True where the answer's tokens occur, in order and without a gap.

    Args:
        tokens: int32 [T], what was generated.
        answer: Token ids; none never occur.
    """
    if not answer or len(tokens) < len(answer):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(answer))
    return bool((windows == np.asarray(answer)).all(axis=1).any())
