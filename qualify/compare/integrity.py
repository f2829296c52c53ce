"""Is the evidence there, and is it what was asked for? Nothing that is missing may look like a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qualify.compare.inspect import Flaws, too_short, usable
from qualify.findings import Finding, Weight
from qualify.record import ArmState, ExpectedRequest, RunRecord
from qualify.runtable import RequestHead, RunTable
from qualify.transcript import Arm, Decode, RunKey, planned_runs

OWN_DOING = frozenset({ArmState.SERVED, ArmState.DIED, ArmState.HUNG})
"""States of an arm in which a failed request is the server's own doing."""


def check_compared(record: RunRecord, decode: Decode, compared: Iterable[str]) -> list[Finding]:
    """Findings about judged requests that were not compared, whatever the reason.

    One way of decoding is compared for the whole run, so a scenario without it is not compared at all.

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
    findings = [
        Finding(
            rule="not-compared",
            weight=Weight.UNTESTED,
            scenario=scenario.name,
            summary=f"No request of scenario {scenario.name} was compared: it is not decoded as those are "
            f"that decide ({decode}).",
            advice="Decode all scenarios in the same way, or put this one into a release of its own.",
            request_ids=tuple(sorted(request.request_id for request in scenario.requests if request.judged)),
        )
        for scenario in record.scenarios
        if decode not in scenario.decode_ways
    ]
    left = sorted(judged - set(compared))
    if not left:
        return findings
    return [
        *findings,
        Finding(
            rule="not-compared",
            weight=Weight.UNTESTED,
            summary=f"{_count(left)} could not be compared: some run has no complete answer.",
            advice="See the findings about runs and requests.",
            request_ids=tuple(left),
        ),
    ]


def required_runs(record: RunRecord, forced_runs: int) -> tuple[RunKey, ...]:
    """Runs that the plan asked for.

    Args:
        record: The run record.
        forced_runs: Forced runs of the baseline that the policy asks for.

    Returns:
        Their keys, arm by arm.
    """
    ways = {way for scenario in record.scenarios for way in scenario.decode_ways}
    return tuple(key for arm in record.expected_arms for key in planned_runs(arm, ways, forced_runs))


def check_runs(record: RunRecord, required: Iterable[RunKey], flaws: Mapping[RunKey, Flaws]) -> list[Finding]:
    """Findings about missing runs, missing or failed requests, and answers that cannot be.

    Args:
        record: The run record.
        required: Runs that must be there; further runs of a way of decoding that is judged are checked too.
        flaws: What was found wrong with each run's answers.

    Returns:
        What was found; the missing runs of one arm are one finding.
    """
    findings: list[Finding] = []
    missing: dict[Arm, list[RunKey]] = {}
    further = {key for key in record.runs if expected_in(record, key)}
    for key in sorted({*required, *further}, key=str):
        run = record.runs.get(key)
        if run is None or not run.heads:
            missing.setdefault(key.arm, []).append(key)
            continue
        findings += _requests(record, key, run)
        findings += _not_finite(record, key, flaws)
        findings += _answers(key, flaws[key])
    return findings + [_missing_runs(record, arm, keys) for arm, keys in missing.items()]


def _missing_runs(record: RunRecord, arm: Arm, keys: Sequence[RunKey]) -> Finding:
    entry = record.arms.get(arm)
    state = f"; the arm's state is {entry.state}" if entry else ""
    lacking = "Run {} has" if len(keys) == 1 else "Runs {} have"
    return Finding(
        rule="run-missing",
        weight=Weight.UNTESTED,
        arm=arm,
        summary=f"{lacking.format(', '.join(str(key) for key in keys))} no transcripts{state}.",
        advice="Run again, and read the arm's log if it happens again.",
    )


def expected_in(record: RunRecord, key: RunKey) -> dict[str, ExpectedRequest]:
    """Requests that a run must have, by id.

    Args:
        record: The run record.
        key: The run; where it decodes alone, only requests that are marked so.
    """
    return {
        request.request_id: request
        for scenario in record.scenarios
        if key.decode in scenario.decode_ways
        for request in scenario.requests
        if request.alone or key.decode is not Decode.ALONE
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
    failed = [head for head in heads if head.failure is not None or not head.complete or too_short(head)]
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


def _own_doing(record: RunRecord, key: RunKey, names: Sequence[str]) -> bool:
    """True where the candidate failed by itself at what the baseline answered."""
    arm = record.arms.get(key.arm)
    if key.arm is not Arm.CANDIDATE or arm is None or arm.state not in OWN_DOING:
        return False
    baseline = record.runs.get(RunKey(Arm.BASELINE, key.decode, 1))
    answered = {head.request_id for head in baseline.heads if usable(head)} if baseline else set()
    return set(names) <= answered


def only_here_not_finite(record: RunRecord, key: RunKey, flaws: Mapping[RunKey, Flaws]) -> frozenset[str]:
    """Requests of a run with logprobs that are not finite, where those of every baseline run are.

    Args:
        record: The run record.
        key: The run.
        flaws: What was found wrong with each run's answers.
    """
    names = frozenset(flaws[key].not_finite)
    runs = [other for other in record.runs if (other.arm, other.decode) == (Arm.BASELINE, key.decode)]
    for other in runs:
        answered = {head.request_id for head in record.runs[other].heads if usable(head)}
        names &= answered.difference(flaws[other].not_finite, flaws[other].not_listed)
    return names if runs else frozenset()


def _not_finite(record: RunRecord, key: RunKey, flaws: Mapping[RunKey, Flaws]) -> list[Finding]:
    """NaN, infinite and missing values: the arm's own doing where the baseline has none.

    The control's own are what a fault may well do; they count where the control has to be caught.
    """
    own = only_here_not_finite(record, key, flaws)
    weight = {Arm.CANDIDATE: Weight.DEFECT, Arm.CONTROL: Weight.NOTE}.get(key.arm, Weight.UNTESTED)
    common = [name for name in flaws[key].not_finite if name not in own]
    told = (
        (weight, sorted(own), "have NaN, infinite or missing logprobs, and finite ones in the baseline"),
        (Weight.UNTESTED, common, "have NaN, infinite or missing logprobs"),
    )
    return [
        Finding(
            rule="not-finite",
            weight=weight,
            arm=key.arm,
            request_ids=tuple(names),
            summary=f"{_count(names)} of run {key} {what}.",
            advice="A NaN row usually means that attention read uninitialised or foreign memory.",
        )
        for weight, names, what in told
        if names
    ]


def _answers(key: RunKey, flaws: Flaws) -> list[Finding]:
    """Missing lists, impossible probabilities, tokens that were not the forced ones."""
    findings = []
    for rule, names, what in (
        ("not-listed", flaws.not_listed, "list no most probable tokens at some position"),
        ("probability", flaws.over_one, "list probabilities that sum to more than 1"),
        ("top-logprobs", flaws.other_width, "list another number of most probable tokens than the baseline"),
        ("forced-tokens", flaws.not_forced, "did not emit the forced tokens"),
    ):
        if names:
            findings.append(_untested(rule, key, f"{_count(names)} of run {key} {what}", names))
    return findings


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
