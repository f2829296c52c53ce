"""What a server's engine steps show of the load that reached it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.compare.coverage.window import active_widths
from qualify.record import RunRecord
from qualify.runtable import RequestHead
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode, RunKey

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_NOBODY = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, eq=False)
class ArmLoad:
    """One arm's S steps with E rows of R requests, and whose they are.

    Attributes:
        steps: The steps.
        heads: Transcript of each request, in the order of ``steps.server_request_ids``; None where unknown.
        runs: Run of each request; None where unknown.
        decoding: bool [E], the row's prompt was computed before the step.
        longest: int32 [S], longest context of the step's rows.
        shortest: int32 [S], shortest of them.
        found: int64 [R], prompt tokens that the request's first step found in the KV cache.
        preempted: int64 [R], how often the request lost its place and was computed again.
        widths: int64 [S], active width of the step's metadata rows, in entries; None where the server's
            longest context or the compression ratio are unknown.
    """

    steps: StepTable
    heads: tuple[RequestHead | None, ...]
    runs: tuple[RunKey | None, ...]
    decoding: Mask
    longest: npt.NDArray[np.int32]
    shortest: npt.NDArray[np.int32]
    found: Numbers
    preempted: Numbers
    widths: Numbers | None

    def of(self, *, scenario: str | None = None, decode: Decode | None = None) -> Load:
        """The load of some requests.

        Args:
            scenario: Only of this scenario.
            decode: Only of runs with this way of decoding.
        """
        wanted = np.array(
            [
                (scenario is None or (head is not None and head.scenario == scenario))
                and (decode is None or (run is not None and run.decode is decode))
                for head, run in zip(self.heads, self.runs, strict=True)
            ],
            dtype=bool,
        )
        if wanted.all():
            return measure_load(self, wanted, np.ones(len(self.steps.decode), dtype=bool))
        steps = np.zeros(len(self.steps.decode), dtype=bool)
        steps[self.steps.step[wanted[self.steps.request]]] = True
        return measure_load(self, wanted, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was reached by some requests' steps. Counts of steps are of decode steps unless said otherwise.

    Attributes:
        rows: Steps by number of rows.
        graphs: Steps that one graph replayed as a whole, by the graph's rows; empty where those are unknown.
        padded: Steps that were padded to a larger graph.
        exact: Steps with as many rows as their graph.
        widths: Steps by active width in entries; None where that is unknown.
        straddling: Shortest and longest context of each step with several rows, as pairs, sorted.
        prefill_beside: Steps of any kind that computed one request's prompt and decoded another.
        prefix_hits: Prompt tokens that each request found in the prefix cache, those above 0 only.
        tails: Prompt tokens left to compute after a prefix hit, one for each hit.
        requests: Requests seen.
        preemptions: How often a request was preempted and computed again.
        identical: Most requests with the same prompt in one step.
        speculating: True where a row decoded several tokens in one step, as verified drafts are.
    """

    rows: Mapping[int, int]
    graphs: Mapping[int, int]
    padded: int
    exact: int
    widths: Mapping[int, int] | None
    straddling: tuple[tuple[int, int], ...]
    prefill_beside: int
    prefix_hits: tuple[int, ...]
    tails: tuple[int, ...]
    requests: int
    preemptions: int
    identical: int
    speculating: bool

    def straddled(self, tokens: int) -> bool:
        """True where in some step one row's context was longer than so many tokens and another's was not."""
        return any(shortest <= tokens < longest for shortest, longest in self.straddling)


def arm_load(record: RunRecord, arm: Arm) -> ArmLoad | None:
    """Lays an arm's steps beside its transcripts.

    Args:
        record: The run record.
        arm: The arm.

    Returns:
        None where its server recorded no step, or none that names requests.
    """
    steps = record.steps.get(arm)
    if steps is None or not len(steps.step):
        return None
    known = {
        head.server_request_id: (head, key)
        for key, run in record.runs.items()
        if key.arm is arm
        for head in run.heads
    }
    pairs = [known.get(name, (None, None)) for name in steps.server_request_ids]
    heads = tuple(head for head, _ in pairs)
    prompt = np.array([head.context_tokens if head else _NOBODY for head in heads], dtype=np.int64)
    scheduled = steps.reached - steps.computed
    # of a request without a transcript nothing is known but that prompts of one token are rare
    unknown = prompt[steps.request] == _NOBODY
    decoding = np.where(unknown, scheduled == 1, steps.computed >= prompt[steps.request])
    longest = np.zeros(len(steps.decode), dtype=np.int32)
    shortest = np.full(len(steps.decode), _NOBODY, dtype=np.int32)
    np.maximum.at(longest, steps.step, steps.reached)
    np.minimum.at(shortest, steps.step, steps.reached)
    widths = None
    if record.max_model_len is not None and record.compress_ratio is not None:
        widths = active_widths(longest, record.max_model_len, record.compress_ratio)
    return ArmLoad(
        steps=steps,
        heads=heads,
        runs=tuple(run for _, run in pairs),
        decoding=decoding,
        longest=longest,
        shortest=shortest,
        found=_found(steps),
        preempted=_preempted(steps),
        widths=widths,
    )


def _found(steps: StepTable) -> Numbers:
    """Tokens in the KV cache before each request's first step: what the prefix cache had of it."""
    first = np.unique(steps.request, return_index=True)[1]
    found = np.zeros(len(steps.server_request_ids), dtype=np.int64)
    found[steps.request[first]] = steps.computed[first]
    return found


def _preempted(steps: StepTable) -> Numbers:
    """Every step adds at least one token to a request's cache; where none was added, it had been emptied."""
    order = np.argsort(steps.request, kind="stable")
    request, computed = steps.request[order], steps.computed[order]
    again = (request[1:] == request[:-1]) & (computed[1:] <= computed[:-1])
    return np.bincount(request[1:][again], minlength=len(steps.server_request_ids)).astype(np.int64)


def measure_load(arm: ArmLoad, wanted: Mask, chosen: Mask) -> Load:
    """Measures what some requests' steps reached.

    Args:
        arm: The arm.
        wanted: bool [R], the requests.
        chosen: bool [S], the steps in which any of them had a row.
    """
    steps = arm.steps
    decode = steps.decode & chosen
    whole = decode & steps.whole & (steps.padded_rows > 0)
    several = decode & (steps.rows > 1)
    pairs = np.unique(np.stack([arm.shortest[several], arm.longest[several]], axis=1), axis=0)
    prompts = np.array([head.context_tokens if head else 0 for head in arm.heads], dtype=np.int64)
    # a server leaves at least one token of a prompt to compute; a request with none was met in mid-decode
    hits = np.flatnonzero(wanted & (arm.found > 0) & (arm.found < prompts))
    mine = chosen[steps.step] & arm.decoding
    return Load(
        rows=_counted(steps.rows[decode]),
        graphs=_counted(steps.padded_rows[whole]),
        padded=int((steps.padded_rows[whole] > steps.rows[whole]).sum()),
        exact=int((steps.padded_rows[whole] == steps.rows[whole]).sum()),
        widths=_counted(arm.widths[decode]) if arm.widths is not None else None,
        straddling=tuple((int(low), int(high)) for low, high in pairs),
        prefill_beside=int((_any(arm, mine) & _any(arm, chosen[steps.step] & ~arm.decoding)).sum()),
        prefix_hits=tuple(sorted(arm.found[hits].tolist())),
        tails=tuple(sorted((prompts[hits] - arm.found[hits]).tolist())),
        requests=int(wanted.sum()),
        preemptions=int(arm.preempted[wanted].sum()),
        identical=_identical(arm, mine & decode[steps.step]),
        speculating=bool((steps.reached - steps.computed > 1)[mine & wanted[steps.request]].any()),
    )


def _counted(values: Iterable[int]) -> dict[int, int]:
    return {int(value): count for value, count in sorted(Counter(np.asarray(values).tolist()).items())}


def _any(arm: ArmLoad, entries: Mask) -> Mask:
    """Bool [S], steps in which any of the chosen rows occurs."""
    found = np.zeros(len(arm.steps.decode), dtype=bool)
    found[arm.steps.step[entries]] = True
    return found


def _identical(arm: ArmLoad, entries: Mask) -> int:
    """Most rows of one step whose requests have the same prompt."""
    if not entries.any():
        return 0
    digests: dict[str, int] = {}
    prompt = np.array(
        [
            digests.setdefault(head.prompt_sha256 if head else f"unknown {number}", len(digests))
            for number, head in enumerate(arm.heads)
        ],
        dtype=np.int64,
    )
    if len(digests) == len(arm.heads):
        return 1
    keys = arm.steps.step[entries].astype(np.int64) * len(digests) + prompt[arm.steps.request[entries]]
    return int(np.unique(keys, return_counts=True)[1].max())
