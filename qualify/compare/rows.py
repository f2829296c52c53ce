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
    start = np.array([head.start if head else 0 for head in asked], dtype=np.int32)
    prompt = np.array([head.context_tokens if head else 0 for head in asked], dtype=np.int32)
    length = np.array([head.length if head else 0 for head in asked], dtype=np.int32)
    entry, token = _emitted(steps, prompt, length)
    at = start[steps.request[entry]] + token
    row[at], step[at] = steps.row[entry], steps.step[entry]
    return Placement(row, step, context, recorded=True)


def _emitted(steps: StepTable, prompt: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """Which tokens each row of a step can have emitted: one, or several where it verified drafts.

    Args:
        steps: E rows of R requests.
        prompt: int32 [R], prompt tokens of each request.
        length: int32 [R], tokens that it emitted; 0 leaves it out.

    Returns:
        int32 [N] indices of rows and int32 [N] tokens of their requests; by request, steps in order.
    """
    ours = np.flatnonzero(length[steps.request] > 0).astype(np.int32)
    order = ours[np.argsort(steps.request[ours], kind="stable")]
    request, computed, reached = (column[order] for column in (steps.request, steps.computed, steps.reached))
    after = _new_after(request, computed, reached)
    # a row that computes a prompt, to its end or not, emits one token at most
    np.maximum(after, reached - 1, out=after, where=computed < prompt[request])
    first = np.maximum(after - prompt[request] + 1, 1)
    last = np.minimum(reached - prompt[request], length[request] - 1)
    count = np.maximum(last - first + 1, 0)
    if count.max(initial=0) <= 1:
        return order[count > 0], first[count > 0]
    entry, first = np.repeat(order, count), np.repeat(first, count)
    return entry, first + np.arange(len(entry), dtype=np.int32) - np.repeat(np.cumsum(count) - count, count)


def _new_after(request: Numbers, computed: Numbers, reached: Numbers) -> Numbers:
    """Tokens of its request behind which a row's are new: what a preempted one had is computed again.

    Args:
        request: int32 [E], the requests, sorted.
        computed: int32 [E], tokens computed before the step.
        reached: int32 [E], tokens computed after it.
    """
    after = computed.copy()
    again = (request[1:] == request[:-1]) & (computed[1:] <= computed[:-1])
    for one in np.unique(request[1:][again]):
        mine = slice(*np.searchsorted(request, [one, one + 1]))
        before = np.maximum.accumulate(computed[mine])[:-1]
        least = np.where(computed[mine][1:] <= before, np.maximum.accumulate(reached[mine])[:-1], 0)
        after[mine][1:] = np.maximum(after[mine][1:], least)
    return after
