"""Which of the judged tokens the step log accounts for, and which of them a replay computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qualify.compare.coverage.demands import decisive
from qualify.compare.rows import UNKNOWN, place
from qualify.findings import NOT_MEASURED, STEP_LOG, STEPS_OF_ANSWERS, CoverageCell
from qualify.record import AS_RECORDED, RunRecord
from qualify.runtable import RunTable, reduce_requests
from qualify.steps import StepTable
from qualify.transcript import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTokens:
    """Judged tokens of one scenario in an arm's decisive runs of it, without each request's first (prefill).

    Attributes:
        scenario: The scenario.
        control_can_act: The control must be caught in it.
        tokens: Tokens after the first of each judged request.
        recorded: Of these, tokens whose step was recorded.
        decode: Of these, tokens of steps with nothing but decode rows.
        replayed_decode: Of these, tokens of steps that were replayed as a whole.
        replayed: Tokens of any step that was replayed as a whole.
    """

    scenario: str
    control_can_act: bool
    tokens: int
    recorded: int
    decode: int
    replayed_decode: int
    replayed: int


def judged_tokens(record: RunRecord, arm: Arm) -> tuple[JudgedTokens, ...]:
    """Looks each judged token up in the arm's step log.

    Args:
        record: The run record.
        arm: The arm; of the baseline all runs of the decisive way of decoding count.

    Returns:
        One entry for each scenario with such tokens; nothing where the arm's server recorded no step.
    """
    steps = record.steps.get(arm)
    if steps is None or not len(steps.decode):
        return ()
    found: dict[str, np.ndarray] = {}
    for key, run in sorted(record.runs.items(), key=lambda item: str(item[0])):
        if key.arm is not arm or (arm is not Arm.BASELINE and key.number > 1):
            continue
        names = {scenario.name for scenario in record.scenarios if decisive(scenario) is key.decode}
        for name, counts in _of_run(run, steps, names).items():
            found[name] = found.get(name, 0) + counts
    acts = {scenario.name: scenario.control_can_act for scenario in record.scenarios}
    return tuple(
        JudgedTokens(
            scenario=name,
            control_can_act=acts[name],
            tokens=int(tokens),
            recorded=int(recorded),
            decode=int(decode),
            replayed_decode=int(replayed_decode),
            replayed=int(replayed),
        )
        for name, (tokens, recorded, decode, replayed_decode, replayed) in sorted(found.items())
        if tokens
    )


def _of_run(run: RunTable, steps: StepTable, scenarios: set[str]) -> dict[str, np.ndarray]:
    """Five counts for each scenario, in the order of `JudgedTokens`."""
    heads = [head for head in run.heads if head.judged and head.scenario in scenarios]
    if not heads:
        return {}
    step = place(run, steps).step
    recorded = step != UNKNOWN
    at = np.maximum(step, 0)
    decode, whole = recorded & steps.decode[at], recorded & steps.whole[at]
    counts = np.stack(
        [
            np.array([max(head.length - 1, 0) for head in heads]),
            *(
                reduce_requests(mask.astype(np.int32), heads, np.add, 0)
                for mask in (recorded, decode, decode & whole, whole)
            ),
        ],
        axis=1,
    )
    owner = np.array([head.scenario for head in heads])
    return {str(name): counts[owner == name].sum(axis=0) for name in np.unique(owner)}


def answers_recorded(record: RunRecord, arm: Arm, judged: Sequence[JudgedTokens]) -> Iterator[CoverageCell]:
    """Whether the step log is that of the judged answers: each of their tokens has a step in it.

    Args:
        record: The run record.
        arm: The arm.
        judged: Its judged tokens; none where it recorded no step, which other cells say.
    """
    name = f"judged tokens of the {arm} whose step was recorded"
    steps = record.steps.get(arm)
    if record.replay == AS_RECORDED and steps is not None:
        # counted steps are all that such files hold: which request was in which is not known
        yield CoverageCell(name=name, reached=NOT_MEASURED, how=STEPS_OF_ANSWERS)
    elif judged:
        tokens, recorded = sum(item.tokens for item in judged), sum(item.recorded for item in judged)
        missing = [item.scenario for item in judged if item.recorded < item.tokens]
        yield CoverageCell(
            name=name,
            reached=f"{recorded} of {tokens}" + (f", not all in {', '.join(missing)}" if missing else ""),
            required="all",
            satisfied=not missing,
            how=STEPS_OF_ANSWERS,
        )


def answers_replayed(
    record: RunRecord, judged: Sequence[JudgedTokens], share: float
) -> Iterator[CoverageCell]:
    """How many of the candidate's judged tokens a replay computed; prefills beside decodes leave some out.

    Args:
        record: The run record.
        judged: Its judged tokens.
        share: Least share in each scenario where the control can act.
    """
    if record.replay == AS_RECORDED or not judged:
        return
    tokens, replayed = sum(item.tokens for item in judged), sum(item.replayed for item in judged)
    least = min(judged, key=lambda item: item.replayed / item.tokens)
    asked = [item for item in judged if item.control_can_act]
    yield CoverageCell(
        name="judged tokens of the candidate that a replay computed",
        reached=f"{replayed} of {tokens} ({replayed / tokens:.1%})"
        + (f", fewest in {least.scenario} ({least.replayed / least.tokens:.1%})" if len(judged) > 1 else ""),
        required=f"{share:.1%} where the control can act" if asked else "",
        satisfied=all(item.replayed >= share * item.tokens for item in asked) if asked else None,
        how=STEP_LOG,
    )


def short_of_replays(judged: Sequence[JudgedTokens], share: float) -> list[JudgedTokens]:
    """Scenarios whose judged decode steps were not replayed often enough.

    Args:
        judged: The candidate's judged tokens.
        share: Least share of the tokens of decode steps.
    """
    return [item for item in judged if item.replayed_decode < share * item.decode]
