"""The small values that scenarios are written with."""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from qualify.yamlsource import Strict

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Profile = Literal["smoke", "gate", "soak"]
Known = Literal["needle", "arithmetic", "echo"]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Offset = Annotated[float, Field(ge=0, le=86_400)]
Tokens = Annotated[int, Field(ge=1, le=4_194_304)]
MOST_REQUESTS = 100_000
Count = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]


class Spread(Strict):
    """Lengths of many requests, spread evenly between two ends. The same in every run: nothing is drawn.

    Attributes:
        count: How many.
        shortest: Least tokens.
        longest: Most tokens.
        spacing: ``linear``: equal differences; ``geometric``: equal ratios, so that short ones prevail.
        order: ``rising``, ``falling``, or ``shuffled``, in an order that the place of use decides.
    """

    count: Count
    shortest: Tokens
    longest: Tokens
    spacing: Literal["linear", "geometric"] = "linear"
    order: Literal["rising", "falling", "shuffled"] = "shuffled"

    @model_validator(mode="after")
    def _ends_in_order(self) -> Spread:
        if self.shortest > self.longest:
            raise ValueError(f"shortest {self.shortest} is longer than longest {self.longest}")
        return self

    def lengths(self, place: str) -> tuple[int, ...]:
        """The lengths in tokens, in sending order.

        Args:
            place: Decides the order of shuffled ones.
        """
        low, high = float(self.shortest), float(self.longest)
        steps = [index / max(self.count - 1, 1) for index in range(self.count)]
        if self.spacing == "linear":
            rising = [round(low + (high - low) * step) for step in steps]
        else:
            rising = [round(low * math.exp(math.log(high / low) * step)) for step in steps]
        if self.order == "rising":
            return tuple(rising)
        if self.order == "falling":
            return tuple(reversed(rising))
        # numpy promises the raw stream for good
        seed = int.from_bytes(hashlib.sha256(place.encode()).digest()[:8], "little")
        keys = np.random.PCG64(np.random.SeedSequence([seed, self.count])).random_raw(self.count)
        return tuple(rising[index] for index in np.argsort(np.asarray(keys), kind="stable").tolist())


def _form(value: object) -> str:
    if isinstance(value, list | tuple):
        return "each"
    return "spread" if isinstance(value, dict | Spread) else "same"


Lengths = Annotated[
    Annotated[Tokens, Tag("same")]
    | Annotated[
        Annotated[tuple[Tokens, ...], Field(min_length=1, max_length=MOST_REQUESTS, strict=False)],
        Tag("each"),
    ]
    | Annotated[Spread, Tag("spread")],
    Discriminator(_form),
]
"""Token counts of several requests: one number for all, one for each, or a spread."""


Written = int | tuple[int, ...] | Spread


def lengths_of(value: Written, place: str) -> tuple[int, ...]:
    """Writes out token counts.

    Args:
        value: As the scenario gives them.
        place: Decides the order of a shuffled spread.

    Returns:
        One count for each request; a single number is one request.
    """
    if isinstance(value, Spread):
        return value.lengths(place)
    return value if isinstance(value, tuple) else (value,)
