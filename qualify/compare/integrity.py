"""Is the evidence there, and is it what was asked for? Nothing that is missing may look like a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from qualify.compare.divergence import finite
from qualify.findings import Finding, Weight
from qualify.record import ArmState, ExpectedRequest, RunRecord
from qualify.runtable import NO_TOKEN, RequestHead, RunTable
from qualify.transcript import Arm, Decode, RunKey

OWN_DOING = frozenset({ArmState.SERVED, ArmState.DIED, ArmState.HUNG})
"""States of an arm in which a failed request is the server's own doing."""

PROBABILITY_SLACK = 1e-3
"""Listed probabilities may sum to so much over 1: 20 single-precision logprobs, rounded in transit."""


def check_compared(record: RunRecord, decode: Decode, compared: Iterable[str]) -> list[Finding]:
    """A finding for judged requests that were not compared, whatever the reason.

    Args:
        record: The run record.
        decode: Way of decoding that was compared.
        compared: Ids of the requests that were.
    """
    judged = {
        request.request_id
        for scenario in record.scenarios
        if decode in scenario.decode_ways
        for request in scenario.requests
        if request.judged
    }
    left = sorted(judged - set(compared))
    if not left:
        return []
    return [
        Finding(
            rule="not-compared",
            weight=Weight.UNTESTED,
            summary=f"{_count(left)} could not be compared: some run has no complete answer.",
            advice="See the findings about runs and requests.",
            request_ids=tuple(left),
        )
    ]


def required_runs(record: RunRecord, forced_runs: int) -> tuple[RunKey, ...]:
    """Runs that the plan asked for.

    With forced decoding the floor comes from the baseline's forced runs and one free run gives the tokens to
    force; without it the baseline must have decoded freely at least twice.

    Args:
        record: The run record.
        forced_runs: Forced runs of the baseline that the policy asks for.
    """
    ways = {way for scenario in record.scenarios for way in scenario.decode_ways}
    arms = [Arm.CANDIDATE] + ([Arm.CONTROL] if record.control_configured else [])
    keys = []
    for way in sorted(ways):
        count = forced_runs if way == Decode.FORCED else (1 if Decode.FORCED in ways else 2)
        keys += [RunKey(Arm.BASELINE, Decode(way), number) for number in range(1, count + 1)]
        keys += [RunKey(arm, Decode(way), 1) for arm in arms]
    return tuple(keys)


def check_runs(record: RunRecord, required: Iterable[RunKey]) -> list[Finding]:
    """Findings about missing runs, missing or failed requests, and answers that cannot be.

    Args:
        record: The run record.
        required: Runs that must be there; further runs of a way of decoding that is judged are checked too.
    """
    findings = []
    further = {key for key in record.runs if expected_in(record, key)}
    for key in sorted({*required, *further}, key=str):
        run = record.runs.get(key)
        if run is None or not run.heads:
            findings.append(_missing_run(record, key))
            continue
        findings += _requests(record, key, run)
        findings += _answers(record, run)
    return findings


def _missing_run(record: RunRecord, key: RunKey) -> Finding:
    arm = record.arms.get(key.arm)
    state = f"; the arm's state is {arm.state}" if arm else ""
    return Finding(
        rule="run-missing",
        weight=Weight.UNTESTED,
        arm=key.arm,
        summary=f"Run {key} has no transcripts{state}.",
        advice="Run again, and read the arm's log if it happens again.",
    )


def expected_in(record: RunRecord, key: RunKey) -> dict[str, ExpectedRequest]:
    """Requests that a run must have, by id."""
    return {
        request.request_id: request
        for scenario in record.scenarios
        if key.decode in scenario.decode_ways
        for request in scenario.requests
    }


def _requests(record: RunRecord, key: RunKey, run: RunTable) -> list[Finding]:
    expected = expected_in(record, key)
    heads = {head.request_id: head for head in run.heads}
    missing = sorted(set(expected) - set(heads))
    unknown = sorted(set(heads) - set(expected))
    prompts = sorted(
        name
        for name in set(heads) & set(expected)
        if heads[name].prompt_sha256 != expected[name].prompt_sha256
    )
    shapes = sorted(
        name
        for name in set(heads) & set(expected)
        if (heads[name].context_tokens, heads[name].max_tokens)
        != (expected[name].context_tokens, expected[name].max_tokens)
    )
    findings = []
    for rule, names, what in (
        ("request-missing", missing, "have no transcript"),
        ("request-unknown", unknown, "were not asked for by the plan"),
        ("request-duplicate", list(run.duplicates), "were recorded more than once"),
        ("prompt-differs", prompts, "were sent with another prompt than the plan's"),
        ("request-differs", shapes, "were sent with another length than the plan's"),
    ):
        if names:
            findings.append(_untested(rule, key, f"{_count(names)} of run {key} {what}", names))
    findings += _failures(record, key, [heads[name] for name in sorted(heads)])
    return findings


def _failures(record: RunRecord, key: RunKey, heads: Sequence[RequestHead]) -> list[Finding]:
    findings = []
    failed = [head for head in heads if head.failure is not None or not head.complete or _short(head)]
    by_kind: dict[str, list[RequestHead]] = {}
    for head in failed:
        by_kind.setdefault(_kind(head), []).append(head)
    for kind in sorted(by_kind):
        group = by_kind[kind]
        names = [head.request_id for head in group]
        defect = kind != "cancelled" and _own_doing(record, key, names)
        first = group[0].failure
        said = f": {first.message}" if first and first.message else ""
        findings.append(
            Finding(
                rule="request-failed",
                weight=Weight.DEFECT if defect else Weight.UNTESTED,
                arm=key.arm,
                summary=f"{_count(names)} of run {key} ended without a complete answer ({kind}){said}.",
                advice="The baseline answered them; read the candidate's log."
                if defect
                else "Run again; nothing is known of what these requests would have shown.",
                request_ids=tuple(names),
            )
        )
    return findings


def _kind(head: RequestHead) -> str:
    if head.failure is not None:
        return head.failure.kind
    return "too few tokens" if head.complete else "tokens without logprobs"


def _short(head: RequestHead) -> bool:
    """Every request is asked for a fixed number of tokens; in free decoding a stop token may end it early."""
    return head.length == 0 or (head.length < head.max_tokens and head.finish_reason != "stop")


def _own_doing(record: RunRecord, key: RunKey, names: Sequence[str]) -> bool:
    """True where the candidate failed by itself at what the baseline answered."""
    arm = record.arms.get(key.arm)
    if key.arm is not Arm.CANDIDATE or arm is None or arm.state not in OWN_DOING:
        return False
    baseline = record.runs.get(RunKey(Arm.BASELINE, key.decode, 1))
    answered = {head.request_id for head in baseline.heads if usable(head)} if baseline else set()
    return set(names) <= answered


def usable(head: RequestHead) -> bool:
    """True where a request was answered completely."""
    return head.failure is None and head.complete and not _short(head)


def incomparable(record: RunRecord, run: RunTable) -> set[str]:
    """Requests of a run whose answers cannot be compared with the baseline's, though they are complete."""
    astray = _not_forced(record, run) if run.key.decode is Decode.FORCED else []
    return {*_over_one(run), *_other_width(record, run), *astray}


def _answers(record: RunRecord, run: RunTable) -> list[Finding]:
    """NaN, infinite and missing values, probabilities over 1, forced tokens that did not come."""
    findings = []
    broken, over = _not_finite(run), _over_one(run)
    weight = Weight.DEFECT if run.key.arm is Arm.CANDIDATE else Weight.UNTESTED
    if broken:
        findings.append(
            Finding(
                rule="not-finite",
                weight=weight,
                arm=run.key.arm,
                request_ids=tuple(broken),
                summary=f"{_count(broken)} of run {run.key} have NaN, infinite or missing logprobs.",
                advice="A NaN row usually means that attention read uninitialised or foreign memory.",
            )
        )
    if over:
        findings.append(
            _untested(
                "probability",
                run.key,
                f"{_count(over)} of run {run.key} list probabilities that sum to more than 1",
                over,
            )
        )
    findings += _width(record, run)
    if run.key.decode is Decode.FORCED:
        astray = _not_forced(record, run)
        if astray:
            findings.append(
                _untested(
                    "forced-tokens",
                    run.key,
                    f"{_count(astray)} of run {run.key} did not emit the forced tokens",
                    astray,
                )
            )
    return findings


def _not_finite(run: RunTable) -> list[str]:
    good = finite(run.top_ids, run.top_logprobs) & np.isfinite(run.logprobs)
    return [head.request_id for head in run.heads if usable(head) and not good[head.positions].all()]


def _over_one(run: RunTable) -> list[str]:
    with np.errstate(invalid="ignore"):
        mass = np.nansum(np.exp(run.top_logprobs.astype(np.float64)), axis=1)
    return [head.request_id for head in run.heads if np.any(mass[head.positions] > 1 + PROBABILITY_SLACK)]


def _width(record: RunRecord, run: RunTable) -> list[Finding]:
    differ = _other_width(record, run)
    what = f"{_count(differ)} of run {run.key} list another number of most probable tokens than the baseline"
    return [_untested("top-logprobs", run.key, what, differ)] if differ else []


def _other_width(record: RunRecord, run: RunTable) -> list[str]:
    """Lists of another length than the baseline's make divergences that are not there."""
    first = record.runs.get(RunKey(Arm.BASELINE, run.key.decode, 1))
    if first is None or run is first:
        return []
    theirs = _narrowest(first)
    return [name for name, width in _narrowest(run).items() if theirs.get(name, width) != width]


def _narrowest(run: RunTable) -> dict[str, int]:
    """Fewest tokens that a request lists at any position; the emitted token may be listed on top of them."""
    listed = (run.top_ids != NO_TOKEN).sum(axis=1)
    return {head.request_id: int(listed[head.positions].min()) for head in run.heads if usable(head)}


def _not_forced(record: RunRecord, run: RunTable) -> list[str]:
    free = record.runs.get(RunKey(Arm.BASELINE, Decode.FREE, 1))
    first = record.runs.get(RunKey(Arm.BASELINE, Decode.FORCED, 1))
    source = free if free is not None else first
    if source is None:
        return []
    given = {head.request_id: head for head in source.heads if usable(head)}
    digests = {head.request_id: head.forced_sha256 for head in first.heads} if first else {}
    astray = []
    for head in run.heads:
        if not usable(head) or head.request_id not in given:
            continue
        tokens = source.token_ids[given[head.request_id].positions]
        same = np.array_equal(tokens, run.token_ids[head.positions])
        if not same or digests.get(head.request_id, head.forced_sha256) != head.forced_sha256:
            astray.append(head.request_id)
    return astray


def _untested(rule: str, key: RunKey, what: str, names: Sequence[str]) -> Finding:
    return Finding(
        rule=rule,
        weight=Weight.UNTESTED,
        arm=key.arm,
        summary=f"{what}.",
        request_ids=tuple(names),
        advice="Run again; this run's evidence cannot be used for them.",
    )


def _count(names: Sequence[str]) -> str:
    return "1 request" if len(names) == 1 else f"{len(names)} requests"
