"""When the requests of a phase arrive, as a scenario says it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from qualify.scenario.values import MOST_REQUESTS, Count, Offset
from qualify.yamlsource import Strict

HELD_EVERY_S = 0.05
"""Seconds between two held requests. vLLM sends a stream's headers from the very task that then puts the
request into the engine's queue, with nothing in between but the handling of this one; the next is sent after
that."""

_OF_KIND = {
    "offsets": ("offsets_s",),
    "poisson": ("per_s", "seed"),
    "closed": ("concurrency",),
    "trace": ("file", "offsets_s"),
}
_NEEDED = {
    "offsets": ("offsets_s", "arrival by offsets needs offsets_s, one number of seconds for each request"),
    "poisson": ("per_s", "arrival 'poisson' needs per_s, the mean number of requests a second"),
    "closed": ("concurrency", "arrival 'closed' needs concurrency, the number of requests kept in flight"),
    "trace": ("file", "arrival 'trace' needs file, a JSON-lines file beside the scenario"),
}
_OPTIONS = ("offsets_s", "per_s", "seed", "concurrency", "file")


class Arrival(Strict):
    """When a phase's requests reach the server.

    Attributes:
        kind: ``together``: sent at once; ``held``: the server queues them (its development endpoint
            ``/pause?mode=keep``), they are sent in order and start together; ``blocker``: the first request
            is sent, and while its prompt keeps the server busy the others are sent in order behind it;
            ``offsets``: each at its own time; ``poisson``: independently, at a mean rate; ``closed``: a new
            one whenever one has ended; ``trace``: as a recorded trace says.
        offsets_s: With ``offsets``: seconds after the phase's start, one for each request.
        per_s: With ``poisson``: mean number of requests a second.
        seed: With ``poisson``: decides the times, which are the same in every run.
        concurrency: With ``closed``: requests that are kept in flight.
        file: With ``trace``: a JSON-lines file within the scenario's folder; each line has ``offset_s``,
            ``context_tokens`` and ``decode_tokens`` of one request.
    """

    kind: Literal["together", "offsets", "held", "blocker", "poisson", "closed", "trace"] = "together"
    offsets_s: Annotated[tuple[Offset, ...], Field(strict=False, max_length=MOST_REQUESTS)] = ()
    per_s: Annotated[float, Field(gt=0, le=10_000)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    concurrency: Count | None = None
    file: Annotated[str, StringConstraints(min_length=1, max_length=300)] | None = None

    @model_validator(mode="after")
    def _options_only_where_used(self) -> Arrival:
        option, sentence = _NEEDED.get(self.kind, ("", ""))
        if option and not getattr(self, option):
            raise ValueError(sentence)
        for name in _OPTIONS:
            if name in self.model_fields_set and name not in _OF_KIND.get(self.kind, ()):
                raise ValueError(f"{name} has no meaning with arrival {self.kind!r}")
        return self

    def offsets(self, count: int) -> tuple[float, ...]:
        """Seconds after the phase's start at which each of its requests is due.

        Args:
            count: Requests of the phase.

        Returns:
            One for each; zeros where something else than the clock decides.
        """
        if self.per_s is None:
            return self.offsets_s or (0.0,) * count
        # inverse transform of the raw stream, which numpy promises for good
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, count]))
        upper = np.asarray(bits.random_raw(count), dtype=np.uint64) >> np.uint64(11)
        gaps = [-math.log(1.0 - bit * 2.0**-53) / self.per_s for bit in upper.tolist()]
        return tuple(np.cumsum(gaps).tolist())
