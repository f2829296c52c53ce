"""One at a time: the candidate's answers among others beside its answers to the same requests alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qualify.compare.divergence import symmetric_kld
from qualify.compare.figures import in_known_units
from qualify.compare.inspect import equal_tokens, ranges, usable
from qualify.compare.pairing import Indices
from qualify.compare.summary import WILD
from qualify.findings import Finding, Weight
from qualify.policy import DecisionPolicy
from qualify.record import RunRecord
from qualify.runtable import RequestHead, RunTable
from qualify.transcript import Arm, Decode, RunKey

RULE = "one-at-a-time"


def check_alone(record: RunRecord, policy: DecisionPolicy) -> list[Finding]:
    """Findings about requests that the candidate answers otherwise alone than among others.

    Two batch shapes of a right server differ by rounding, far below the ceiling. The baseline is no excuse:
    a defect of batching that both arms have shows nowhere else.

    Args:
        record: The run record; nothing is found where no request was sent alone.
        policy: The ceiling.
    """
    mine = _means(record, Arm.CANDIDATE)
    if not mine:
        return []
    usual = _means(record, Arm.BASELINE)
    hit = tuple(sorted(name for name, mean in mine.items() if mean > policy.ceiling_kld))
    largest = max(mine.values())
    if not hit:
        return [
            Finding(
                rule=RULE,
                weight=Weight.SATISFIED,
                arm=Arm.CANDIDATE,
                summary=f"The candidate answers {len(mine)} requests alone as among others: a request's mean "
                f"divergence is at most {largest:.2g} nats ({in_known_units(largest)}).",
            )
        ]
    also = [name for name in hit if usual.get(name, 0.0) > policy.ceiling_kld]
    return [
        Finding(
            rule=RULE,
            weight=Weight.DEFECT,
            arm=Arm.CANDIDATE,
            request_ids=hit,
            summary=f"The candidate answers {len(hit)} of {len(mine)} requests otherwise alone than among "
            f"others: a request's mean divergence is up to {largest:.2g} nats; so does the baseline with "
            f"{len(also)} of them.",
            advice="Look for what depends on the batch: rows, padding, pages of others.",
            evidence=(f"limit {policy.ceiling_kld:g} nats ({in_known_units(policy.ceiling_kld)})",),
        )
    ]


def _means(record: RunRecord, arm: Arm) -> dict[str, float]:
    """Mean divergence of each request, alone against among others, over positions with equal prefixes."""
    alone = record.runs.get(RunKey(arm, Decode.ALONE, 1))
    among = record.runs.get(RunKey(arm, Decode.FORCED, 1))
    if alone is None or among is None:
        return {}
    by_id = {head.request_id: head for head in among.heads if usable(head)}
    mine = [head for head in alone.heads if usable(head) and head.request_id in by_id]
    theirs = [by_id[head.request_id] for head in mine]
    if not mine:
        return {}
    shared = _shared(alone, mine, among, theirs)
    at = ranges([head.start for head in mine], shared), ranges([head.start for head in theirs], shared)
    distances = symmetric_kld(alone.top_ids, alone.top_logprobs, among.top_ids, among.top_logprobs, rows=at)
    # one wild position must not carry a request, as in the ceiling rule
    parts = np.split(np.minimum(distances, WILD), np.cumsum(shared)[:-1])
    # a value that is not finite is a finding of its own
    return {
        head.request_id: float(np.nanmean(part))
        for head, part in zip(mine, parts, strict=True)
        if not np.isnan(part).all()
    }


def _shared(
    alone: RunTable, mine: Sequence[RequestHead], among: RunTable, theirs: Sequence[RequestHead]
) -> Indices:
    """Positions of each request before which both emitted the same tokens."""
    equal = equal_tokens(alone, mine, among, theirs)
    shorter = [min(a.length, b.length) for a, b in zip(mine, theirs, strict=True)]
    return np.minimum(equal + 1, np.array(shorter, dtype=np.int64))
