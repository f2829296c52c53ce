"""Looks at one run's answers for what makes them unfit to be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.compare.divergence import finite, lists_any
from qualify.record import RunRecord
from qualify.runtable import NO_TOKEN, RequestHead, RunTable, reduce_requests
from qualify.transcript import Arm, Decode, RunKey

PROBABILITY_SLACK = 1e-3
"""Listed probabilities may sum to so much over 1: 20 single-precision logprobs, rounded in transit."""

CHUNK = 1 << 16
"""Positions looked at once, so that temporaries stay small."""


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaws:
    """Ids of one run's complete requests with flaws, each sorted.

    Attributes:
        not_listed: Some position lists no token at all, so that nothing can be compared there.
        not_finite: Logprobs that are NaN or infinite, or missing where tokens are listed.
        over_one: Probabilities that sum to more than 1.
        other_width: Another number of listed tokens than the baseline's first run of the same way of
            decoding: divergences would appear that are not there.
        not_forced: Other tokens than the forced ones.
    """

    not_listed: tuple[str, ...]
    not_finite: tuple[str, ...]
    over_one: tuple[str, ...]
    other_width: tuple[str, ...]
    not_forced: tuple[str, ...]

    @property
    def incomparable(self) -> frozenset[str]:
        """Requests that cannot be compared; a position that is not finite is left out by itself."""
        return frozenset({*self.over_one, *self.other_width, *self.not_forced})


def usable(head: RequestHead) -> bool:
    """True where a request was answered completely."""
    return head.failure is None and head.complete and not too_short(head)


def too_short(head: RequestHead) -> bool:
    """Every request asks for a fixed number of tokens; in free decoding a stop token may end it early."""
    return head.length == 0 or (head.length < head.max_tokens and head.finish_reason != "stop")


def inspect_runs(record: RunRecord) -> Mapping[RunKey, Flaws]:
    """Inspects every run of a record."""
    widths = {
        decode: _narrowest(record.runs[key])
        for decode in Decode
        if (key := RunKey(Arm.BASELINE, decode, 1)) in record.runs
    }
    return {key: _inspect(record, run, widths.get(key.decode, {})) for key, run in record.runs.items()}


def _inspect(record: RunRecord, run: RunTable, widths: Mapping[str, int]) -> Flaws:
    heads = [head for head in run.heads if usable(head)]
    listed, good, over = _positions(run)
    empty = ~reduce_requests(listed, heads, np.logical_and, True)
    bad = ~reduce_requests(good, heads, np.logical_and, True)
    above = reduce_requests(over, heads, np.logical_or, False)
    mine = _narrowest(run)
    return Flaws(
        not_listed=_named(heads, empty),
        not_finite=_named(heads, bad),
        over_one=_named(heads, above),
        other_width=tuple(sorted(name for name in mine if widths.get(name, mine[name]) != mine[name])),
        not_forced=_not_forced(record, run, heads) if run.key.decode is not Decode.FREE else (),
    )


def _named(heads: Sequence[RequestHead], flagged: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(sorted(head.request_id for head, hit in zip(heads, flagged, strict=True) if hit))


def _positions(run: RunTable) -> tuple[Mask, Mask, Mask]:
    """Which positions list any token, are finite in all that they list, and list more than all probability.

    Returns:
        Three bool [P].
    """
    listed = lists_any(run.top_ids)
    good = np.ones(len(run.token_ids), dtype=bool)
    over = ~good
    for start in range(0, len(good), CHUNK):
        part = slice(start, start + CHUNK)
        ids, values = run.top_ids[part], run.top_logprobs[part]
        good[part] = finite(ids, values) & (np.isfinite(run.logprobs[part]) | ~listed[part])
        mass = np.exp(np.where(np.isnan(values), -np.inf, values)).sum(axis=1, dtype=np.float64)
        over[part] = mass > 1 + PROBABILITY_SLACK
    return listed, good, over


def _narrowest(run: RunTable) -> dict[str, int]:
    """Fewest tokens that a request lists at any position; the emitted token may be listed on top of them."""
    heads = [head for head in run.heads if usable(head)]
    fewest = reduce_requests((run.top_ids != NO_TOKEN).sum(axis=1), heads, np.minimum, 0)
    return {head.request_id: int(width) for head, width in zip(heads, fewest, strict=True)}


def _not_forced(record: RunRecord, run: RunTable, heads: Sequence[RequestHead]) -> tuple[str, ...]:
    """Requests that did not emit the forced tokens: the baseline's free run's, or its first forced run's.

    The digests of what was to be forced must agree as well, which shows a processor that got other tokens.
    """
    first = record.runs.get(RunKey(Arm.BASELINE, Decode.FORCED, 1))
    source = record.runs.get(RunKey(Arm.BASELINE, Decode.FREE, 1), first)
    if source is None:
        return ()
    given = {head.request_id: head for head in source.heads if usable(head)}
    digests = {head.request_id: head.forced_sha256 for head in first.heads} if first else {}
    known = [head for head in heads if head.request_id in given]
    theirs = [given[head.request_id] for head in known]
    same = equal_tokens(run, known, source, theirs)
    return tuple(
        sorted(
            head.request_id
            for head, other, equal in zip(known, theirs, same, strict=True)
            if not head.length == other.length == equal
            or digests.get(head.request_id, head.forced_sha256) != head.forced_sha256
        )
    )


def equal_tokens(
    run: RunTable, heads: Sequence[RequestHead], other: RunTable, theirs: Sequence[RequestHead]
) -> npt.NDArray[np.int64]:
    """Counts the tokens that two runs' answers begin with in common.

    Args:
        run: One run.
        heads: U requests of it, none without a token.
        other: The other run.
        theirs: The same U requests of the other run.

    Returns:
        int64 [U].
    """
    common = np.array([min(a.length, b.length) for a, b in zip(heads, theirs, strict=True)], dtype=np.int64)
    if not len(common):
        return common
    i = ranges([head.start for head in heads], common)
    j = ranges([head.start for head in theirs], common)
    begin = np.cumsum(common) - common
    offset = np.arange(len(i)) - np.repeat(begin, common)
    equal = run.token_ids[i] == other.token_ids[j]
    return np.minimum(np.minimum.reduceat(np.where(equal, np.iinfo(np.int64).max, offset), begin), common)


def ranges(
    starts: Sequence[int] | npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Concatenation of ``start .. start + count - 1`` for each start: int64."""
    before = np.cumsum(counts) - counts
    return np.repeat(np.asarray(starts, dtype=np.int64) - before, counts) + np.arange(int(counts.sum()))
