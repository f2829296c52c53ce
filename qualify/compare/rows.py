"""Which row of which decode step computed each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.runtable import RunTable
from qualify.steps import StepTable

UNKNOWN = -1

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where the P tokens of one run were computed.

    Attributes:
        row: int32 [P], row of the decode batch; `UNKNOWN` for tokens that a prefill computed.
        step: int32 [P], index of the engine step; `UNKNOWN` where not recorded.
        context: int32 [P], tokens before the position: the prompt and what was emitted.
        recorded: False where rows were estimated from the order in which requests were sent.
    """

    row: Numbers
    step: Numbers
    context: Numbers
    recorded: bool


def place(run: RunTable, steps: StepTable | None) -> Placement:
    """Finds the decode row of each emitted token of a run.

    Token i of a request was computed by the step after which the KV cache held its prompt and i tokens more.
    Token 0 comes from the prefill and has no decode row.

    Args:
        run: The run.
        steps: Steps of the run's server; None where none were recorded.
    """
    row = np.full(len(run.token_ids), UNKNOWN, dtype=np.int32)
    step, context = row.copy(), row.copy()
    for head in run.heads:
        context[head.positions] = head.context_tokens + np.arange(head.length)
    if steps is None or not len(steps.row):
        for head in run.heads:
            row[head.start + 1 : head.start + head.length] = head.index
        return Placement(row, step, context, recorded=False)
    by_id = {head.server_request_id: head for head in run.heads}
    asked = [by_id.get(name) for name in steps.server_request_ids]
    start = np.array([head.start if head else 0 for head in asked], dtype=np.int64)
    prompt = np.array([head.context_tokens if head else 0 for head in asked], dtype=np.int64)
    length = np.array([head.length if head else 0 for head in asked], dtype=np.int64)
    token = steps.reached - prompt[steps.request]
    ours = (token >= 1) & (token < length[steps.request])
    at = start[steps.request[ours]] + token[ours]
    row[at], step[at] = steps.row[ours], steps.step[ours]
    return Placement(row, step, context, recorded=True)
