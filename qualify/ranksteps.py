"""What each rank of a server that spans several processes recorded of its steps, held against rank 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from qualify.steps import DECODE, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """One rank's steps in figures.

    Attributes:
        rank: Which.
        steps: Steps that it recorded; 0 where it recorded nothing.
        replayed: Of these, steps in which anything was replayed.
        decode: Steps with nothing but decode rows.
        whole: Of these, steps that the plan's kind of replay replayed as a whole.
        other: First difference from the steps of rank 0; empty where both ran the same.
        looked: Steps whose C128A rows were looked at where a graph reads them.
        looked_decode: Of these, steps with nothing but decode rows.
        wrong: Of those looked at, steps with rows that are not what the reference makes of them.
        wrong_rows: Rows that were ever wrong, sorted.
        disagreed: Of those looked at, steps whose rows are not those of rank 0.
    """

    rank: int
    steps: int
    replayed: int
    decode: int
    whole: int
    other: str
    looked: int
    looked_decode: int
    wrong: int
    wrong_rows: tuple[int, ...]
    disagreed: int


@dataclass(slots=True)
class _Counted:
    rank: int
    replay: str
    steps: int = 0
    replayed: int = 0
    decode: int = 0
    whole: int = 0
    other: str = ""
    looked: int = 0
    looked_decode: int = 0
    wrong: int = 0
    wrong_rows: set[int] = field(default_factory=set)
    disagreed: int = 0

    def add(self, step: Step, first: Step | None) -> None:
        self.steps += 1
        self.replayed += step.replayed
        if step.kind == DECODE:
            self.decode += 1
            self.whole += step.replay == self.replay
        if step.metadata is not None:
            self.looked += 1
            self.looked_decode += step.kind == DECODE
            self.wrong += bool(step.metadata.wrong_rows)
            self.wrong_rows.update(step.metadata.wrong_rows)
            if first is not None and first.metadata is not None:
                self.disagreed += step.metadata.crc32 != first.metadata.crc32

    def rank_steps(self) -> RankSteps:
        return RankSteps(
            rank=self.rank,
            steps=self.steps,
            replayed=self.replayed,
            decode=self.decode,
            whole=self.whole,
            other=self.other,
            looked=self.looked,
            looked_decode=self.looked_decode,
            wrong=self.wrong,
            wrong_rows=tuple(sorted(self.wrong_rows)),
            disagreed=self.disagreed,
        )


def compare_ranks(read: Callable[[int], Iterable[Step]], ranks: int, replay: str) -> tuple[RankSteps, ...]:
    """Goes through the step logs of one server's ranks side by side, once, one step at a time.

    Args:
        read: Gives the steps of a rank; nothing where it recorded none.
        ranks: Ranks that the server has.
        replay: The kind of replay that the plan says.

    Returns:
        One entry for each rank, rank 0 first.
    """
    counted = [_Counted(rank, replay) for rank in range(ranks)]
    for number, steps in enumerate(itertools.zip_longest(*(read(rank) for rank in range(ranks)))):
        for entry, step in zip(counted, steps, strict=True):
            if step is not None:
                entry.add(step, steps[0])
            if not entry.other:
                entry.other = _difference(number, steps[0], step)
    return tuple(entry.rank_steps() for entry in counted)


def _difference(number: int, first: Step | None, own: Step | None) -> str:
    if first is None and own is None:
        return ""
    if first is None or own is None:
        return f"step {number} was recorded by rank 0 only" if own is None else f"rank 0 has no step {number}"
    for name, theirs, mine in (
        ("is a step of kind", first.kind, own.kind),
        ("has rows of", _requests(first), _requests(own)),
        ("was replayed by", first.replay, own.replay),
    ):
        if theirs != mine:
            return f"step {number} {name} {mine}; on rank 0: {theirs}"
    return ""


def _requests(step: Step) -> str:
    """Requests in row order; the ids are the ones that they were sent with, the same on every rank."""
    return ", ".join(row.server_request_id for row in step.rows)
