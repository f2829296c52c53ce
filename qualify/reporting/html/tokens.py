"""The token view: the arms' most probable tokens side by side, position by position.

Transcripts hold token ids and no text, and so does the view.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qualify.compare.arm import Judged
from qualify.record import RunRecord
from qualify.reporting.html.measured import Measured, Nats
from qualify.reporting.html.tables import nats
from qualify.runtable import NO_TOKEN, RequestHead, RunTable
from qualify.transcript import Arm, Decode, RunKey

MOST_LINES = 2400
"""Positions that the page shows in all: about a megabyte."""

MOST_LINES_EACH = 96
"""Positions of one request."""

BEFORE = 8
"""Positions shown before the first difference of a request that is too long to be shown whole."""

_ALTERNATIVES = 3


@dataclass(frozen=True, slots=True)
class Token:
    """One token that a server listed.

    Attributes:
        token_id: Its id.
        share: Its probability as percentage.
        emitted: True for the token that was emitted.
    """

    token_id: int
    share: str
    emitted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm at one position.

    Attributes:
        tokens: Its most probable tokens, best first, and the emitted one where it is not among them.
        other_top: True where its most probable token is not the baseline's.
    """

    tokens: tuple[Token, ...]
    other_top: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One position of one request.

    Attributes:
        position: From 0.
        emitted: Id of the token that the baseline emitted.
        cells: One for each arm.
        distances: Divergence of each arm but the baseline from the baseline run that is shown, as text.
        first: Arms whose first difference lies here.
    """

    position: int
    emitted: int
    cells: tuple[Cell, ...]
    distances: tuple[str, ...]
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request.

    Attributes:
        anchor: Its id on the page.
        request_id: Its id in the run.
        context_tokens: Length of its prompt in tokens.
        told: What is to be seen, in a few words.
        differs: True where any arm differs from every baseline run by more than the floor.
        lines: Its positions.
        left_out: Positions that are not shown.
    """

    anchor: str
    request_id: str
    context_tokens: int
    told: str
    differs: bool
    lines: tuple[Line, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """All requests that the page has room for.

    Attributes:
        arms: Headings of the cells.
        runs: The runs that the cells come from.
        exact: True where the floor is exactly zero, so that any difference counts.
        threshold: The floor's largest divergence, as text.
        requests: In the order of their ids.
        left_out: Ids of requests that there is no room for.
        forced: True where the tokens were given to the servers.
    """

    arms: tuple[str, ...]
    runs: tuple[str, ...]
    exact: bool
    threshold: str
    requests: tuple[RequestView, ...]
    left_out: tuple[str, ...]
    forced: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Side:
    """One arm's compared requests: its run, and where each request lies in it.

    Attributes:
        name: The arm.
        run: The run that is shown.
        heads: Its requests by id.
        nearest: For each request float64 [P], nats from the nearest baseline run, which say what differs.
        shown: The same from the baseline run that is shown.
    """

    name: str
    run: RunTable
    heads: Mapping[str, RequestHead]
    nearest: Mapping[str, Nats]
    shown: Mapping[str, Nats]


def token_view(record: RunRecord, measured: Measured) -> TokenView | None:
    """Lays the arms' answers side by side.

    Args:
        record: The run record.
        measured: What was compared.

    Returns:
        The view; None where nothing was compared. Requests that differ come before others where there is not
        room for all.
    """
    if not measured.judged:
        return None
    first = measured.judged[0]
    decode = Decode(first.comparison.decode)
    subjects = [entry for entry in measured.judged if entry.comparison.decode == first.comparison.decode]
    sides = [_baseline(record, first, decode), *(_side(record, entry, decode) for entry in subjects)]
    threshold = float(measured.floor.max(initial=0.0))
    order = sorted(sides[0].heads, key=lambda name: (-_peak(sides[1:], name, threshold), name))
    shown, room = [], MOST_LINES
    for name in order:
        length = min(sides[0].heads[name].length, MOST_LINES_EACH)
        if length <= room:
            shown.append(name)
            room -= length
    anchors = {name: f"request-{number}" for number, name in enumerate(sorted(order, key=_natural))}
    return TokenView(
        arms=tuple(side.name for side in sides),
        runs=tuple(str(side.run.key) for side in sides),
        exact=threshold == 0,
        threshold=nats(threshold),
        requests=tuple(
            _request(anchors[name], name, sides, threshold) for name in sorted(shown, key=_natural)
        ),
        left_out=tuple(sorted(set(order) - set(shown), key=_natural)),
        forced=decode is Decode.FORCED,
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts ``x/10`` after ``x/9``."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts)]


def _baseline(record: RunRecord, judged: Judged, decode: Decode) -> _Side:
    number = min(key.number for key in record.runs if (key.arm, key.decode) == (Arm.BASELINE, decode))
    heads = {group[0].request_id: group[0] for group in judged.aligned.heads}
    run = record.runs[RunKey(Arm.BASELINE, decode, number)]
    return _Side(name="baseline", run=run, heads=heads, nearest={}, shown={})


def _side(record: RunRecord, judged: Judged, decode: Decode) -> _Side:
    number = min(key.number for key in record.runs if (key.arm, key.decode) == (judged.arm, decode))
    layout = judged.aligned.layout
    heads = [group[-1] for group in judged.aligned.heads]

    def by_request(values: Nats) -> dict[str, Nats]:
        parts = np.split(values, layout.starts[1:-1])
        return {head.request_id: part for head, part in zip(heads, parts, strict=True)}

    last = layout.runs - 1
    return _Side(
        name=str(judged.arm),
        run=record.runs[RunKey(judged.arm, decode, number)],
        heads={head.request_id: head for head in heads},
        nearest=by_request(layout.nearest(last)),
        shown=by_request(layout.distances[:, layout.pairs.index((0, last))]),
    )


def _peak(sides: Iterable[_Side], name: str, threshold: float) -> float:
    """Largest divergence of a request beyond the floor, the candidate's before the control's."""
    for side in sides:
        peak = float(np.nan_to_num(side.nearest.get(name, np.zeros(1))).max(initial=0.0))
        if peak > threshold:
            return peak + (1e6 if side.name == Arm.CANDIDATE else 0.0)
    return 0.0


def _request(anchor: str, name: str, sides: Sequence[_Side], threshold: float) -> RequestView:
    head = sides[0].heads[name]
    firsts = {side.name: _first(side, name, threshold) for side in sides[1:]}
    found = [at for at in firsts.values() if at is not None]
    start = 0
    if head.length > MOST_LINES_EACH and found:
        start = min(max(min(found) - BEFORE, 0), head.length - MOST_LINES_EACH)
    end = min(start + MOST_LINES_EACH, head.length)
    none = f"nothing beyond the floor ({nats(threshold)} nats)" if threshold else "no difference"
    told = [
        f"{arm}: first difference at {at}" if at is not None else f"{arm}: {none}"
        for arm, at in firsts.items()
        if name in next(side for side in sides if side.name == arm).heads
    ]
    return RequestView(
        anchor=anchor,
        request_id=name,
        context_tokens=head.context_tokens,
        told=", ".join(told),
        differs=bool(found),
        lines=tuple(_line(at, name, sides, firsts) for at in range(start, end)),
        left_out=head.length - (end - start),
    )


def _first(side: _Side, name: str, threshold: float) -> int | None:
    beyond = np.flatnonzero(np.nan_to_num(side.nearest.get(name, np.zeros(0))) > threshold)
    return int(beyond[0]) if len(beyond) else None


def _line(at: int, name: str, sides: Sequence[_Side], firsts: Mapping[str, int | None]) -> Line:
    cells = [_cell(side, name, at) for side in sides]
    best = cells[0].tokens[0].token_id if cells[0].tokens else None
    marked = [
        Cell(tokens=cell.tokens, other_top=bool(cell.tokens) and cell.tokens[0].token_id != best)
        for cell in cells
    ]
    baseline = sides[0]
    return Line(
        position=at,
        emitted=int(baseline.run.token_ids[baseline.heads[name].start + at]),
        cells=tuple(marked),
        distances=tuple(_distance(side, name, at) for side in sides[1:]),
        first=tuple(arm for arm, first in firsts.items() if first == at),
    )


def _distance(side: _Side, name: str, at: int) -> str:
    values = side.shown.get(name)
    if values is None or at >= len(values) or np.isnan(values[at]):
        return "not compared"
    return nats(float(values[at]))


def _cell(side: _Side, name: str, at: int) -> Cell:
    head = side.heads.get(name)
    if head is None or at >= head.length:
        return Cell(tokens=(), other_top=False)
    where = head.start + at
    emitted = int(side.run.token_ids[where])
    ids = [int(each) for each in side.run.top_ids[where, :_ALTERNATIVES] if each != NO_TOKEN]
    listed = [
        Token(token, _percent(float(side.run.top_logprobs[where, rank])), token == emitted)
        for rank, token in enumerate(ids)
    ]
    if emitted not in ids:
        listed.append(Token(emitted, _percent(float(side.run.logprobs[where])), True))
    return Cell(tokens=tuple(listed), other_top=False)


def _percent(logprob: float) -> str:
    return "?" if np.isnan(logprob) else f"{np.exp(min(logprob, 0.0)):.2%}"
