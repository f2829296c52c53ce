"""Parts of a run in which a fault may live alone, so that it does not drown in the whole.

Membership follows from the engine's steps and the prompts, never from what was answered.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from qualify.compare.rows import UNKNOWN, Placement
from qualify.steps import StepTable

Mask = npt.NDArray[np.bool_]

CONTEXT_EDGES = (2048, 16512, 32896)
"""Tokens. DeepSeek V4 selects entries beyond 2,048; a packed row width changes at 16,512 and 32,896, where
one more power of two of 128-token entries becomes active."""

SETTLED_AFTER = 2
"""Decode steps after a prefill that count as the first ones: buffers still hold what the prefill left."""


def strata(placement: Placement, steps: StepTable | None) -> dict[str, Mask]:
    """Names the parts of one run.

    Args:
        placement: Rows of the run's P tokens.
        steps: Steps of the run's server; None where none were recorded.

    Returns:
        bool [P] for each stratum, in the run's own positions. Strata that are empty or everything are left
        out.
    """
    decoded = placement.row != UNKNOWN
    parts = {"row 0": placement.row == 0, "rows after row 0": placement.row > 0}
    parts |= _buckets("context", placement.context, np.ones(len(decoded), dtype=bool))
    if placement.recorded and steps is not None:
        parts |= _by_step(placement, steps)
    return {name: mask for name, mask in parts.items() if mask.any() and not mask.all()}


def _by_step(placement: Placement, steps: StepTable) -> dict[str, Mask]:
    known = placement.step != UNKNOWN
    step = np.where(known, placement.step, 0)
    longest = np.zeros(len(steps.decode), dtype=np.int32)
    np.maximum.at(longest, steps.step, steps.reached)
    fresh = since_prefill(steps) <= SETTLED_AFTER
    wide = steps.rows > 1
    padded = steps.padded_rows > steps.rows
    exact = steps.padded_rows == steps.rows
    last = placement.row == steps.rows[step] - 1
    return {
        "last row of the batch": known & wide[step] & last,
        "first steps after a prefill": known & fresh[step],
        "padded batch": known & padded[step],
        "batch of a graph's size": known & exact[step],
        **_buckets("longest context of the batch", longest[step], known),
    }


def since_prefill(steps: StepTable) -> npt.NDArray[np.int64]:
    """int64 [S], decode steps since the last step with a prefill, this one included; large before any.

    Args:
        steps: One arm's S steps, in the order in which they ran; all that are no decode step have a prefill.
    """
    number = np.arange(len(steps.decode))
    last = np.maximum.accumulate(np.where(steps.decode, -len(number) - 1, number)) if len(number) else number
    return np.asarray(np.where(steps.decode, number - last, 0))


def _buckets(what: str, tokens: npt.NDArray[np.int32], where: Mask) -> dict[str, Mask]:
    edges = (0, *CONTEXT_EDGES, np.iinfo(np.int64).max)
    parts = {}
    for low, high in pairwise(edges):
        name = f"{what} from {low}" if high == edges[-1] else f"{what} {low} to {high - 1}"
        parts[name] = where & (tokens >= low) & (tokens < high)
    return parts
