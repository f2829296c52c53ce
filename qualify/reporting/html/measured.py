"""The verdict's own distances again, with where and when each was computed, for plots and token view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.compare.arm import Judged, compare_arm
from qualify.compare.inspect import inspect_runs
from qualify.compare.rows import UNKNOWN
from qualify.policy import Policy
from qualify.record import RunRecord
from qualify.runtable import RequestHead
from qualify.transcript import Arm

Numbers = npt.NDArray[np.int64]
Nats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Series:
    """The C comparisons of one arm: each of its positions beside each baseline run that shares it.

    Attributes:
        name: ``candidate`` or ``control``.
        nats: float64 [C], divergence from one baseline run.
        token: int64 [C], position in the request's answer, from 0.
        row: int64 [C], row of the decode batch; `UNKNOWN` for tokens of a prefill.
        batch: int64 [C], rows of the decode step; 0 where unknown, and for steps with a prefill in them.
        seconds: float64 [C], seconds from the start of the run, taken as even between a request's first and
            last token; NaN where unknown.
        rows_recorded: False where rows were estimated.
    """

    name: str
    nats: Nats
    token: Numbers
    row: Numbers
    batch: Numbers
    seconds: Nats
    rows_recorded: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measured:
    """Everything that was compared, one pair of runs at a time, so that floor and arms are the same measure.

    Attributes:
        floor: float64 [C], divergence of two baseline runs, of all pairs of them; empty where nothing was
            compared.
        series: Candidate and control, as far as they were compared.
        judged: The comparisons that they come from.
    """

    floor: Nats
    series: tuple[Series, ...]
    judged: tuple[Judged, ...]

    @property
    def spreads(self) -> tuple[tuple[str, Nats], ...]:
        """Divergences by name: the floor's, then each arm's."""
        floor = (("floor", self.floor),) if len(self.floor) else ()
        return floor + tuple((series.name, series.nats) for series in self.series)


def measure(record: RunRecord, policy: Policy) -> Measured:
    """Compares the arms as the gate does.

    Args:
        record: The run record.
        policy: What it was judged by.
    """
    flaws = inspect_runs(record)
    candidate = compare_arm(record, policy.decision, Arm.CANDIDATE, flaws)
    control = compare_arm(record, policy.decision, Arm.CONTROL, flaws, candidate)
    judged = tuple(entry for entry in (candidate, control) if entry is not None)
    layout = judged[0].aligned.layout if judged else None
    floor = layout.distances[:, layout.floor_columns].ravel() if layout else np.zeros(0)
    return Measured(
        floor=floor[~np.isnan(floor)], series=tuple(_series(record, entry) for entry in judged), judged=judged
    )


def _series(record: RunRecord, judged: Judged) -> Series:
    aligned, layout = judged.aligned, judged.aligned.layout
    lengths = np.diff(layout.starts)
    token = np.arange(int(layout.starts[-1])) - np.repeat(layout.starts[:-1], lengths)
    known, own = aligned.own >= 0, np.maximum(aligned.own, 0)
    step = np.where(known, judged.placement.step[own], UNKNOWN)
    steps = record.steps.get(judged.arm)
    batch = np.zeros(len(token), dtype=np.int64)
    if steps is not None and len(steps.rows):
        at = np.maximum(step, 0)
        batch = np.where((step != UNKNOWN) & steps.decode[at], steps.rows[at], 0)
    seconds = [_seconds(heads[-1], int(length)) for heads, length in zip(aligned.heads, lengths, strict=True)]
    pairs = layout.distances[:, layout.columns(layout.runs - 1)]
    compared = ~np.isnan(pairs)
    where = np.nonzero(compared)[0]
    row = np.where(known, judged.placement.row[own], UNKNOWN)
    return Series(
        name=str(judged.arm),
        nats=pairs[compared],
        token=token[where],
        row=row.astype(np.int64)[where],
        batch=batch.astype(np.int64)[where],
        seconds=np.concatenate(seconds)[where] if seconds else np.zeros(0),
        rows_recorded=judged.placement.recorded,
    )


def _seconds(head: RequestHead, length: int) -> Nats:
    if head.first_token_s is None:
        return np.full(length, np.nan)
    return np.linspace(head.first_token_s, head.finished_s, max(head.length, 1))[
        np.minimum(np.arange(length), max(head.length, 1) - 1)
    ]
