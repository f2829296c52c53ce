"""Oracles beside the distributions: what was written freely, and answers that are known.

They see what a comparison of distributions at equal prefixes cannot (an answer that never ends, a needle that
was not found), and count only against the baseline's own rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qualify.compare.exchange import OddOneOut, shift_test
from qualify.compare.extremes import rare_jump
from qualify.compare.inspect import usable
from qualify.compare.rules import ORACLE_SHARE
from qualify.compare.traits import BOS, TRAITS, contains, traits
from qualify.findings import Finding, Weight
from qualify.policy import DecisionPolicy
from qualify.record import RunRecord
from qualify.runtable import RequestHead, RunTable
from qualify.transcript import Arm, Decode

Scores = npt.NDArray[np.float64]

TESTS = len(TRAITS) + 1
"""Every trait, and the known answers."""

WAYS = 2
"""Two tests, chosen by whether the baseline shows the sign at all, share one limit."""


def check_oracles(record: RunRecord, policy: DecisionPolicy) -> list[Finding]:
    """Findings about the candidate's free decoding.

    Args:
        record: The run record; nothing is found without a free run of both arms.
        policy: Error rate.
    """
    runs, heads = _free_runs(record)
    if not runs:
        return []
    scored = [traits(run, own, record.bos_token_id) for run, own in zip(runs, heads, strict=True)]
    limit = _limit(policy)
    findings = []
    for trait in TRAITS:
        scores = np.stack([values[trait] for values in scored], axis=1)
        findings += _trait(trait, scores, [head.request_id for head in heads[-1]], limit)
    return findings + _answers(record, runs, heads, limit)


def _limit(policy: DecisionPolicy) -> float:
    return policy.false_rejection * ORACLE_SHARE / TESTS


def _free_runs(record: RunRecord) -> tuple[list[RunTable], list[list[RequestHead]]]:
    """The baseline's free runs and the candidate's, which is last, and each one's judged requests.

    Both are empty where an arm has none, or they have no request in common.
    """
    keys = [key for key in sorted(record.runs, key=str) if key.decode is Decode.FREE]
    runs = [record.runs[key] for key in keys if key.arm is Arm.BASELINE]
    mine = [record.runs[key] for key in keys if key.arm is Arm.CANDIDATE]
    if not runs or not mine:
        return [], []
    runs = [*runs, mine[0]]
    heads = _common(runs)
    return (runs, heads) if heads[0] else ([], [])


def _common(runs: Sequence[RunTable]) -> list[list[RequestHead]]:
    """Judged requests that every run answered, in the same order for each run."""
    known = [{head.request_id: head for head in run.heads if head.judged and usable(head)} for run in runs]
    names = sorted(set.intersection(*(set(own) for own in known)))
    return [[own[name] for name in names] for own in known]


def flag_test(scores: Scores) -> OddOneOut:
    """Does the subject show a sign more often than the baseline's runs?

    Where no baseline run shows it at all, its rate is known to be small, and that counts too.

    Args:
        scores: float64 [U, R], the subject last; 0 is none.
    """
    odd = shift_test(scores)
    p = odd.p
    if not (scores[:, :-1] > 0).any() and odd.odd:
        watched = np.ones(len(scores))
        p = rare_jump(odd.odd, watched, watched * (scores.shape[1] - 1))
    return OddOneOut(odd.odd, odd.decided, min(1.0, p * WAYS))


def _trait(trait: str, scores: Scores, names: Sequence[str], limit: float) -> list[Finding]:
    test = flag_test(scores)
    mine = (scores[:, -1] > 0) & (scores[:, -1] > scores[:, :-1].max(axis=1))
    # No right server writes a run of BOS tokens, so one is enough where the baseline wrote none.
    certain = trait == BOS and mine.any() and not (scores[:, :-1] > 0).any()
    if test.p > limit and not certain:
        return []
    hit = tuple(name for name, flagged in zip(names, mine, strict=True) if flagged)
    return [
        Finding(
            rule="invariant",
            weight=Weight.DEFECT,
            arm=Arm.CANDIDATE,
            request_ids=hit,
            summary=f"Decoding freely, the candidate {trait} in {len(hit)} of {len(names)} requests "
            "where the baseline does so less.",
            advice="Read these answers beside the baseline's.",
            evidence=(f"by chance with probability {test.p:.2g}, limit {limit:.2g}",),
        )
    ]


def known_answers(record: RunRecord) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Judged requests whose answer is known.

    Args:
        record: The run record.

    Returns:
        By request's id, the ways to write its answer as token ids.
    """
    return {
        request.request_id: request.answer_ids
        for scenario in record.scenarios
        for request in scenario.requests
        if request.answer_ids and request.judged
    }


def answers_right(run: RunTable, head: RequestHead, ways: Sequence[Sequence[int]]) -> bool:
    """True where a request's tokens contain one way to write its answer.

    Args:
        run: The run.
        head: One of its requests.
        ways: Ways to write the answer, each as token ids.
    """
    return any(contains(run.token_ids[head.positions], way) for way in ways)


def _wrong(
    record: RunRecord, runs: Sequence[RunTable], heads: Sequence[Sequence[RequestHead]]
) -> tuple[list[int], Scores]:
    """Which of the requests ask for a known answer, and which run missed which: float64 [N, R]."""
    asked = known_answers(record)
    chosen = [number for number, head in enumerate(heads[-1]) if head.request_id in asked]
    missed = [
        [
            not answers_right(run, own[number], asked[own[number].request_id])
            for run, own in zip(runs, heads, strict=True)
        ]
        for number in chosen
    ]
    return chosen, np.array(missed, dtype=np.float64).reshape(len(chosen), len(runs))


def unnoticed_answers(record: RunRecord, policy: DecisionPolicy) -> list[str]:
    """How many known answers the candidate could have lost without a finding, in a sentence.

    Args:
        record: The run record; nothing is said where no answer is known that the baseline gets right.
        policy: Error rate.
    """
    runs, heads = _free_runs(record)
    _, wrong = _wrong(record, runs, heads) if runs else ([], np.zeros((0, 1)))
    solvable = int((wrong[:, :-1] == 0).all(axis=1).sum())
    if not solvable:
        return []
    scores = np.zeros((solvable, wrong.shape[1]))
    lost = 0
    while lost < solvable:
        scores[lost, -1] = 1.0
        if flag_test(scores).p <= _limit(policy):
            break
        lost += 1
    free = len(runs) - 1
    said = f"The candidate could have lost {lost} of the {solvable} known answers without a finding"
    return [f"{said}: there {'is 1 free run' if free == 1 else f'are {free} free runs'} of the baseline."]


def _answers(
    record: RunRecord, runs: Sequence[RunTable], heads: Sequence[Sequence[RequestHead]], limit: float
) -> list[Finding]:
    chosen, wrong = _wrong(record, runs, heads)
    if not chosen:
        return []
    solvable = (wrong[:, :-1] == 0).all(axis=1)
    if not solvable.any():
        return [
            Finding(
                rule="known-answer",
                weight=Weight.NOTE,
                summary=f"The baseline misses all {len(chosen)} known answers, so they say nothing.",
                advice="Ask what the model can answer.",
            )
        ]
    test = flag_test(wrong[solvable])
    missed = solvable & (wrong[:, -1] > 0)
    hit = tuple(heads[-1][number].request_id for number, lost in zip(chosen, missed, strict=True) if lost)
    return [
        Finding(
            rule="known-answer",
            weight=Weight.DEFECT if test.p <= limit else Weight.NOTE,
            arm=Arm.CANDIDATE,
            request_ids=hit,
            summary=f"The candidate misses {len(hit)} of the {int(solvable.sum())} known answers that "
            "every baseline run gets right.",
            advice="Read these answers." if hit else "",
            evidence=(f"by chance with probability {test.p:.2g}, limit {limit:.2g}",),
        )
    ]
