"""Makes run records of known truth: servers whose noise and faults the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qualify.policy import Policy
from qualify.record import (
    ArmRecord,
    ArmState,
    ExpectedRequest,
    RunRecord,
    ScenarioExpectation,
    Step,
    StepRow,
)
from qualify.runtable import collect
from qualify.steps import collect_steps
from qualify.transcript import Arm, Decode, RunKey, Transcript

VOCABULARY = 64
TOP = 20
Logits = npt.NDArray[np.float64]
Fault = Callable[[int, int], float]
"""(row, token) -> strength of the disturbance of the logits; 0 is none."""

POLICY = Policy.model_validate({"format": "qualify/policy/1", "name": "test"})


def no_fault(row: int, token: int) -> float:
    return 0.0


def packed(row: int, token: int) -> float:
    """All rows but the first are wrong in every decode step."""
    return 1.5 if row > 0 and token > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class World:
    """What the servers are like.

    Attributes:
        scenarios: Requests of each scenario.
        tokens: Tokens of each request.
        noise: Standard deviation of a right server's noise in the logits; 0 makes it exact.
        seed: Everything follows from it.
    """

    scenarios: Mapping[str, int]
    tokens: int = 32
    noise: float = 0.05
    seed: int = 0


def keys(control: bool = True) -> list[RunKey]:
    arms = [Arm.CANDIDATE] + ([Arm.CONTROL] if control else [])
    baseline = [RunKey(Arm.BASELINE, Decode.FREE, 1)]
    baseline += [RunKey(Arm.BASELINE, Decode.FORCED, number) for number in (1, 2)]
    return baseline + [RunKey(arm, decode, 1) for arm in arms for decode in (Decode.FREE, Decode.FORCED)]


def truth(world: World, scenario: str, index: int) -> tuple[Logits, list[int]]:
    """Logits of the true model along the forced tokens, and those tokens."""
    number = sorted(world.scenarios).index(scenario)
    random = np.random.default_rng([world.seed, number, index])
    logits = random.normal(0, 2.0, (world.tokens, VOCABULARY))
    return logits, [int(token) for token in logits.argmax(axis=1)]


def transcript(world: World, key: RunKey, scenario: str, index: int, fault: Fault) -> Transcript:
    logits, tokens = truth(world, scenario, index)
    number = sorted(world.scenarios).index(scenario)
    identity = [list(Arm).index(key.arm), list(Decode).index(key.decode), key.number]
    random = np.random.default_rng([world.seed, 7, number, index, *identity])
    strength = np.array([fault(index, token) for token in range(world.tokens)])
    disturbance = np.random.default_rng([world.seed, 9, number, index]).normal(0, 1, logits.shape)
    seen = logits + random.normal(0, world.noise, logits.shape) + strength[:, None] * disturbance
    logprobs = seen - np.log(np.exp(seen).sum(axis=1, keepdims=True))
    order = np.argsort(-logprobs, axis=1)[:, :TOP]
    best = np.take_along_axis(logprobs, order, axis=1)
    name = f"{scenario}/main/{index:04d}"
    return Transcript(
        request_id=name,
        server_request_id=f"{name}@{key}",
        scenario=scenario,
        phase="main",
        index=index,
        judged=True,
        run=key,
        prompt_sha256=f"prompt of {name}",
        context_tokens=1000 + 100 * index,
        max_tokens=world.tokens,
        forced_sha256=None if key.decode is Decode.FREE else f"tokens of {name}",
        token_ids=tuple(tokens),
        logprobs=tuple(float(logprobs[i, token]) for i, token in enumerate(tokens)),
        top_ids=tuple(tuple(int(token) for token in row) for row in order),
        top_logprobs=tuple(tuple(float(value) for value in row) for row in best),
        finish_reason="length",
        failure=None,
        sent_s=0.001 * index,
        first_token_s=1.0,
        finished_s=2.0,
    )


def steps_of(run: Iterable[Transcript], replay: str) -> list[Step]:
    """One decode step for each token after the first; the row is the request's index."""
    requests: dict[tuple[RunKey, str], list[Transcript]] = {}
    for item in run:
        requests.setdefault((item.run, item.scenario), []).append(item)
    steps = []
    for group in requests.values():
        group.sort(key=lambda item: item.index)
        for token in range(1, group[0].max_tokens):
            rows = tuple(
                StepRow(
                    server_request_id=item.server_request_id,
                    row=item.index,
                    computed_tokens=item.context_tokens + token - 1,
                    scheduled_tokens=1,
                )
                for item in group
            )
            steps.append(Step(kind="decode", rows=rows, replay=replay))
    return steps


def build(
    world: World,
    *,
    candidate: Fault = no_fault,
    control: Fault | None = packed,
    edit: Callable[[Transcript], Transcript | None] = lambda item: item,
    order: Callable[[Sequence[Transcript]], Sequence[Transcript]] = lambda items: items,
) -> RunRecord:
    """Serves the world and records the run.

    Args:
        world: What the servers are like.
        candidate: The candidate's fault.
        control: The control's fault; None switches the control off.
        edit: Changes each transcript, or drops it (None).
        order: Order in which the transcripts of a run arrive.
    """
    faults = {Arm.BASELINE: no_fault, Arm.CANDIDATE: candidate, Arm.CONTROL: control or no_fault}
    runs: dict[RunKey, list[Transcript]] = {}
    for key in keys(control is not None):
        served = [
            transcript(world, key, scenario, index, faults[key.arm])
            for scenario in world.scenarios
            for index in range(world.scenarios[scenario])
        ]
        runs[key] = [kept for item in served if (kept := edit(item)) is not None]
    arms = [Arm.BASELINE, Arm.CANDIDATE] + ([Arm.CONTROL] if control else [])
    steps = {
        arm: collect_steps(
            steps_of(
                [item for key, run in runs.items() if key.arm is arm for item in run],
                "none" if arm is Arm.BASELINE else "emulated replay",
            ),
            "emulated replay",
        )
        for arm in arms
    }
    return RunRecord(
        release="test",
        run_date="2026-12-01",
        subject="sha256:0",
        scope=(("device", "test"),),
        replay="emulated replay",
        scenarios=tuple(_expectation(world, name) for name in sorted(world.scenarios)),
        arms={
            arm: ArmRecord(
                arm=arm,
                state=ArmState.SERVED,
                fault="packed-stride" if arm is Arm.CONTROL else None,
            )
            for arm in arms
        },
        runs={key: collect(key, order(run)) for key, run in runs.items()},
        steps=steps,
        control_configured=control is not None,
        max_model_len=32768,
        compress_ratio=128,
    )


def _expectation(world: World, scenario: str) -> ScenarioExpectation:
    names = [f"{scenario}/main/{index:04d}" for index in range(world.scenarios[scenario])]
    return ScenarioExpectation(
        name=scenario,
        decode_ways=("free", "forced"),
        control_can_act=world.scenarios[scenario] > 1,
        requests=tuple(
            ExpectedRequest(
                request_id=name,
                scenario=scenario,
                judged=True,
                context_tokens=1000 + 100 * index,
                max_tokens=world.tokens,
                prompt_sha256=f"prompt of {name}",
            )
            for index, name in enumerate(names)
        ),
    )


def with_arm(record: RunRecord, arm: Arm, state: ArmState, detail: str = "") -> RunRecord:
    """The same record with another end of one arm."""
    changed = replace(record.arms[arm], state=state, detail=detail)
    return replace(record, arms={**record.arms, arm: changed})


def without_runs(record: RunRecord, arm: Arm) -> RunRecord:
    """The same record without an arm's transcripts."""
    return replace(record, runs={key: run for key, run in record.runs.items() if key.arm is not arm})
