"""Synthetic runs: right servers with noise of many kinds, and faults of known extent put into one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt

from qualify.compare.pairing import Layout

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

DIMENSIONS = 8
"""Directions in which logits vary: a divergence is then half a squared distance with as many degrees of
freedom, and spreads as the recorded ones do within a request (standard deviation of its logarithm 0.5)."""

MEAN_NOISE = 0.0033
"""Nats: mean divergence of two right runs of the recorded server with all layers alive."""

REQUEST_SPREAD = 0.19
"""Standard deviation of the logarithm of a request's mean divergence, as recorded."""

LASTING = 0.03
"""Nats: ten times the recorded noise, for an answer whose inner course differs from some token on."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One scenario of a load.

    Attributes:
        name: Its name.
        rows: Requests at once.
        rounds: How often the batch is repeated, with other prompts.
    """

    name: str
    rows: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Load:
    """What every arm is asked.

    Attributes:
        batches: The scenarios.
        tokens: Tokens of each request.
        baselines: Runs of the baseline.
    """

    batches: tuple[Batch, ...]
    tokens: int = 40
    baselines: int = 2

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64 [U], row of each request."""
        return np.concatenate([np.tile(np.arange(batch.rows), batch.rounds) for batch in self.batches])

    @property
    def last(self) -> Mask:
        """Bool [U], requests in the last row of their batch."""
        sizes = [np.full(batch.rows * batch.rounds, batch.rows) for batch in self.batches]
        return np.asarray(self.rows == np.concatenate(sizes) - 1)

    @property
    def scenarios(self) -> npt.NDArray[np.str_]:
        """Str [U], scenario of each request."""
        return np.concatenate([np.full(batch.rows * batch.rounds, batch.name) for batch in self.batches])


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a fault acts; row 0 and the prefill's token are always right, as under a packed stride.

    Attributes:
        share: Share of the other rows that are faulty, drawn anew for each request.
        last_row_only: Only the last row of each batch can be faulty.
        row: Only this row can be faulty.
        every: Only every so many steps.
    """

    share: float = 1.0
    last_row_only: bool = False
    row: int | None = None
    every: int = 1

    def hits(self, load: Load, random: np.random.Generator) -> Mask:
        """Bool [U, T], positions that the fault damages."""
        rows = load.rows
        able = rows > 0
        if self.last_row_only:
            able &= load.last
        if self.row is not None:
            able &= rows == self.row
        faulty = able & (random.random(len(rows)) < self.share)
        step = np.arange(load.tokens)
        # The phase differs from batch to batch, as the step counter of a server does.
        acts = (step > 0) & ((step + random.integers(0, self.every)) % self.every == 0)
        return np.asarray(faulty[:, None] & acts[None, :])


PACKED = Fault()
NO_FAULT = Fault(share=0.0)


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of a right server.

    Attributes:
        factor: Times the recorded mean.
        degrees: Degrees of freedom of Student's t in the logits; None is normal. The divergence's tail is a
            power law with exponent 2 / degrees.
        request_spread: Standard deviation of the logarithm of a scale that one run has for one request.
        jumps: Probability, for each run and position, of a jump to the size of a real fault.
        lasting: Probability of a move by `LASTING` nats that lasts until the end of its request.
        quiet: Share of positions that are free of noise.
    """

    factor: float = 1.0
    degrees: float | None = None
    request_spread: float = 0.0
    jumps: float = 0.0
    lasting: float = 0.0
    quiet: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One simulated run: candidate and control, each beside the same baseline.

    Attributes:
        candidate: The candidate's layout.
        control: The control's.
        masks: Strata, bool [P].
        scenarios: Scenarios, bool [P].
    """

    candidate: Layout
    control: Layout
    masks: Mapping[str, Mask]
    scenarios: Mapping[str, Mask]


@dataclass(frozen=True, slots=True, eq=False)
class Synthetic:
    """Makes runs from a model of the noise.

    Attributes:
        noise: The noise.
        sizes: float64 [N], divergences of damaged positions, as recorded under the packed stride.
    """

    noise: Noise
    sizes: Floats = field(repr=False)

    def trial(self, load: Load, fault: Fault, random: np.random.Generator) -> Trial:
        """One run of the load; `fault` acts in the candidate, the packed stride in the control.

        Args:
            load: Requests, tokens of each, and runs of the baseline.
            fault: Which rows of which steps of the candidate it hits.
            random: Everything is drawn from it, in a fixed order.

        Returns:
            The runs' distances in nats: half the squared distance of their logits.
        """
        shape = (len(load.rows), load.tokens, load.baselines + 2)
        where = self._logits(shape, random)
        for run, acting in ((load.baselines, fault), (load.baselines + 1, PACKED)):
            hits = acting.hits(load, random)
            where[:, :, run][hits] += self._jump(int(hits.sum()), random)

        def between(left: int, right: int) -> Floats:
            return np.asarray(0.5 * ((where[:, :, left] - where[:, :, right]) ** 2).sum(axis=-1))

        return lay_out(load, between)

    def _logits(self, shape: tuple[int, int, int], random: np.random.Generator) -> Floats:
        noise = self.noise
        requests = shape[0]
        scale = np.full(shape, MEAN_NOISE * noise.factor / DIMENSIONS)
        scale *= np.exp(random.normal(0, REQUEST_SPREAD, (requests, 1, 1)))
        if noise.degrees is not None:
            scale *= noise.degrees / random.chisquare(noise.degrees, shape)
        if noise.request_spread:
            scale *= np.exp(random.normal(0, noise.request_spread, (requests, 1, shape[2])))
        if noise.quiet:
            scale *= random.random(shape) >= noise.quiet
        where = random.normal(0, 1, (*shape, DIMENSIONS)) * np.sqrt(scale)[..., None]
        if noise.jumps or noise.lasting:
            jumping = random.random(shape) < noise.jumps
            where[jumping] += self._jump(int(jumping.sum()), random)
            moved = np.cumsum(random.random(shape) < noise.lasting, axis=1) > 0
            where[moved] += _directions(int(moved.sum()), random) * np.sqrt(2 * LASTING)
        return np.asarray(where)

    def _jump(self, count: int, random: np.random.Generator) -> Floats:
        """float64 [count, DIMENSIONS], moves by the size of a recorded fault in any direction."""
        size = np.sqrt(2 * random.choice(self.sizes, count))
        return np.asarray(_directions(count, random) * size[:, None])


def _directions(count: int, random: np.random.Generator) -> Floats:
    """float64 [count, DIMENSIONS], unit vectors."""
    direction = random.normal(0, 1, (count, DIMENSIONS))
    return np.asarray(direction / np.linalg.norm(direction, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Resamples recorded requests, within their scenario.

    Attributes:
        distances: float64 [V, T, N, N], divergences of N runs at V recorded requests.
        right: Which of the N runs are right.
        packed: Which one is packed.
        requests: Recorded requests of each scenario with a row after row 0, as indices into V.
    """

    distances: Floats
    right: tuple[int, ...]
    packed: int
    requests: Mapping[str, npt.NDArray[np.int64]]

    def trial(self, load: Load, fault: Fault, random: np.random.Generator) -> Trial:
        """One run of the load: each request is a recorded one, each role a right run drawn anew for it.

        Args:
            load: Requests, tokens of each, and runs of the baseline; its batches name recorded scenarios.
            fault: Where it hits the candidate, a recorded run with a packed stride takes its place.
            random: Everything is drawn from it, in a fixed order.

        Returns:
            The recorded divergences between the runs that were drawn, in nats.
        """
        source = np.concatenate(
            [random.choice(self.requests[batch.name], batch.rows * batch.rounds) for batch in load.batches]
        )
        requests = len(source)
        order = random.permuted(np.tile(self.right, (requests, 1)), axis=1)[:, : load.baselines + 2]
        role = np.repeat(order[:, None, :], load.tokens, axis=1)
        for run, acting in ((load.baselines, fault), (load.baselines + 1, PACKED)):
            role[:, :, run][acting.hits(load, random)] = self.packed
        # A position is drawn with its token, so that longer answers than the recorded ones can be made.
        token = np.arange(load.tokens) % self.distances.shape[1]
        at = (source[:, None], token[None, :])

        def between(left: int, right: int) -> Floats:
            return np.asarray(self.distances[(*at, role[:, :, left], role[:, :, right])])

        return lay_out(load, between)


World = Synthetic | Recorded


def lay_out(load: Load, between: Callable[[int, int], Floats]) -> Trial:
    """Puts divergences where the judge finds them.

    Args:
        load: The load.
        between: Gives float64 [U, T], divergences of two runs: the baseline's, then candidate, then control.
    """
    floor = {pair: between(*pair).ravel() for pair in combinations(range(load.baselines), 2)}
    scenarios, requests = load.scenarios, len(load.rows)

    def beside(subject: int) -> Layout:
        runs = load.baselines + 1
        pairs = tuple(combinations(range(runs), 2))
        columns = [floor[pair] if pair in floor else between(pair[0], subject).ravel() for pair in pairs]
        return Layout(
            runs=runs,
            starts=np.arange(requests + 1) * load.tokens,
            pairs=pairs,
            distances=np.stack(columns, axis=1),
            scenarios=scenarios,
            asked=np.full(requests, load.tokens),
        )

    parts = {batch.name: np.repeat(scenarios == batch.name, load.tokens) for batch in load.batches}
    return Trial(beside(load.baselines), beside(load.baselines + 1), _masks(load), parts)


def _masks(load: Load) -> dict[str, Mask]:
    decoded = np.arange(load.tokens) > 0
    parts = {"row 0": load.rows == 0, "rows after row 0": load.rows > 0, "last row of the batch": load.last}
    return {name: (part[:, None] & decoded).ravel() for name, part in parts.items()}
