"""Runs the judge's decision over many simulated runs and counts what comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy import special

from qualify.compare.rules import RUN, ask, section
from qualify.findings import Result
from qualify.policy import DecisionPolicy
from qualify.simulate.worlds import Fault, Load, Trial, World

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What is simulated.

    Attributes:
        name: For the table.
        world: The servers' noise.
        load: What they are asked.
        fault: The candidate's fault.
        seed: Everything random follows from it and the trial's number.
    """

    name: str
    world: World
    load: Load
    fault: Fault
    seed: int


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of trials, with its exact (Clopper-Pearson) 95% interval.

    Attributes:
        hits: Trials that counted.
        of: Trials.
    """

    hits: int
    of: int

    @property
    def share(self) -> float:
        """The share."""
        return self.hits / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper limit."""
        tail = (1 - CONFIDENCE) / 2
        low = float(special.betaincinv(self.hits, self.of - self.hits + 1, tail)) if self.hits else 0.0
        missed = self.of - self.hits
        high = float(special.betaincinv(self.hits + 1, missed, 1 - tail)) if missed else 1.0
        return low, high


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a setting's trials.

    Attributes:
        name: The setting.
        rejected: Rejected runs.
        inconclusive: Inconclusive ones: not rejected, and the control was missed somewhere.
        rules: How often each rule spoke among the rejected, most often first.
    """

    name: str
    rejected: Rate
    inconclusive: Rate
    rules: tuple[tuple[str, int], ...]


def decide(trial: Trial, policy: DecisionPolicy) -> tuple[Result, tuple[str, ...]]:
    """The judge's decision on complete evidence, and the rules that spoke against the candidate."""
    masks = {**trial.masks, **{f"scenario {name}": mask for name, mask in trial.scenarios.items()}}
    evidence = ask(section(RUN, trial.candidate, masks), policy)
    fired = tuple(dict.fromkeys(item.rule for item in evidence if item.fired))
    if fired:
        return Result.REJECTED, fired
    for name, inside in trial.scenarios.items():
        parts = {part: mask[inside] for part, mask in trial.masks.items()}
        found = ask(section(name, trial.control.part(inside), parts), policy)
        if not any(item.fired for item in found):
            return Result.INCONCLUSIVE, ()
    return Result.QUALIFIED, ()


def run_trials(setting: Setting, numbers: Iterable[int]) -> list[tuple[Result, tuple[str, ...]]]:
    """Simulates and decides trials by number: the same numbers give the same results."""
    policy = DecisionPolicy()
    results = []
    for number in numbers:
        random = np.random.default_rng([setting.seed, number])
        results.append(decide(setting.world.trial(setting.load, setting.fault, random), policy))
    return results


def simulate(setting: Setting, trials: int, pool: ProcessPoolExecutor, parts: int) -> Outcome:
    """Simulates a setting on several processes.

    Args:
        setting: What.
        trials: How often.
        pool: Where.
        parts: In how many pieces.
    """
    pieces = [range(part, trials, parts) for part in range(parts)]
    futures = [pool.submit(run_trials, setting, piece) for piece in pieces]
    results = [result for future in futures for result in future.result()]
    rules = Counter(rule for _, fired in results for rule in fired)
    counted = Counter(result for result, _ in results)
    return Outcome(
        setting.name,
        Rate(counted[Result.REJECTED], trials),
        Rate(counted[Result.INCONCLUSIVE], trials),
        tuple(sorted(rules.items(), key=lambda item: (-item[1], item[0]))),
    )
