"""Which row of which decode step computed each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.runtable import RunTable
from qualify.steps import StepTable

UNKNOWN = -1

Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


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

    Token i of a request was computed by the step that put token i - 1 into the KV cache behind the prompt;
    by the last one, where a draft was turned down and its place computed again. Token 0 comes from the
    prefill and has no decode row.

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
    entry, token = _emitted(steps, prompt, length)
    at = start[steps.request[entry]] + token
    row[at], step[at] = steps.row[entry], steps.step[entry]
    return Placement(row, step, context, recorded=True)


def _emitted(steps: StepTable, prompt: Places, length: Places) -> tuple[Places, Places]:
    """Which tokens each row of a step can have emitted: one, or several where it verified drafts.

    Args:
        steps: E rows of R requests.
        prompt: int64 [R], prompt tokens of each request.
        length: int64 [R], tokens that it emitted.

    Returns:
        int64 [N] indices of rows and int64 [N] tokens of their requests, in the order of steps.
    """
    order = np.argsort(steps.request, kind="stable")
    request = steps.request[order]
    computed, reached = steps.computed[order].astype(np.int64), steps.reached[order].astype(np.int64)
    # What was computed again after a preemption was emitted before: only what lies beyond is new.
    again = computed <= _most_before(computed, request)
    after = np.where(again, np.maximum(computed, _most_before(reached, request)), computed)
    # A row that computes a prompt, to its end or not, emits one token at most.
    after = np.where(computed < prompt[request], np.maximum(after, reached - 1), after)
    first = np.maximum(after - prompt[request] + 1, 1)
    last = np.minimum(reached - prompt[request], length[request] - 1)
    count = np.maximum(last - first + 1, 0)
    entry = np.repeat(order, count)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)
    return entry, np.repeat(first, count) + within


def _most_before(values: Places, request: Numbers) -> Places:
    """Largest value that the same request had earlier; -1 for its first row.

    Args:
        values: int64 [E], at least 0, sorted by request.
        request: int32 [E], the requests.
    """
    if not len(values):
        return values
    apart = request.astype(np.int64) * (int(values.max()) + 1)
    most = np.maximum.accumulate(values + apart) - apart
    before = np.full(len(values), -1, dtype=np.int64)
    same = request[1:] == request[:-1]
    before[1:][same] = most[:-1][same]
    return before
