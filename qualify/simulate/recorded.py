"""What simulations take from recorded runs: how far right runs are apart, and a packed stride from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qualify.compare.divergence import symmetric_kld
from qualify.foreign.answers import ForeignRun
from qualify.foreign.importing import lay_out
from qualify.runtable import RunTable
from qualify.simulate.evidence import FOLDER, Label, RecordedSet, load_set
from qualify.simulate.worlds import Recorded
from qualify.transcript import Arm, Decode, RunKey

LIVE = "h200-forced-c4-live.tar.xz"
RIGHT = (
    ("eager", "capacity", 1),
    ("eager", "capacity", 2),
    ("eager", "capacity", 3),
    ("full-graph", "capacity", 1),
    ("full-graph", "capacity", 2),
    ("eager", "packed", 1),
)
PACKED = ("full-graph", "packed", 1)
SCENARIOS = ("short8", "short16", "mid4")


def recorded_world(root: Path) -> Recorded:
    """Divergences of the forced runs of the server with all layers alive, where real noise is.

    Args:
        root: The project's root.
    """
    recorded = load_set(root / FOLDER / LIVE)
    tables = [_table(recorded, name) for name in (*RIGHT, PACKED)]
    names = [head.request_id for head in tables[0].heads if head.scenario in SCENARIOS]
    heads = [{head.request_id: head for head in table.heads} for table in tables]
    length = tables[0].heads[0].length
    distances = np.zeros((len(names), length, len(tables), len(tables)))
    at = [np.concatenate([np.arange(length) + own[name].start for name in names]) for own in heads]
    for left, a in enumerate(tables):
        for right, b in enumerate(tables[:left]):
            apart = symmetric_kld(
                a.top_ids, a.top_logprobs, b.top_ids, b.top_logprobs, rows=(at[left], at[right])
            ).reshape(len(names), length)
            distances[:, :, left, right] = distances[:, :, right, left] = apart
    rows = {name: heads[0][name].index for name in names}
    return Recorded(
        distances=distances,
        right=tuple(range(len(RIGHT))),
        packed=len(RIGHT),
        requests={
            scenario: np.array(
                [
                    number
                    for number, name in enumerate(names)
                    if heads[0][name].scenario == scenario and rows[name] > 0
                ]
            )
            for scenario in SCENARIOS
        },
    )


def fault_sizes(world: Recorded) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """float64 [N], divergences of the positions that the packed stride damaged, from the first eager run."""
    chosen = np.concatenate(list(world.requests.values()))
    return np.asarray(world.distances[chosen, 1:, world.packed, world.right[0]].ravel())


def _table(recorded: RecordedSet, name: tuple[str, str, int]) -> RunTable:
    files: list[ForeignRun] = [
        run
        for label, runs in recorded.items()
        if _is(label, name)
        for run in runs
        if run.decode == Decode.FORCED
    ]
    record = lay_out({Arm.BASELINE: tuple(files), Arm.CANDIDATE: tuple(files)}, run_date="2026-12-01")
    return record.runs[RunKey(Arm.BASELINE, Decode.FORCED, 1)]


def _is(label: Label, name: tuple[str, str, int]) -> bool:
    return (label.mode, label.metadata, label.number) == name
