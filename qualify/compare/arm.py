"""Compares one arm of a run record with the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualify.compare.figures import ArmComparison, Evidence, Spread, rounded
from qualify.compare.inspect import Flaws, usable
from qualify.compare.locate import Damage, locate
from qualify.compare.pairing import Agreement, Aligned, Layout, align
from qualify.compare.power import margin, power
from qualify.compare.rows import Placement, place
from qualify.compare.rules import RUN, Sections, ask, quiet_limit, run_limits, section
from qualify.compare.strata import strata
from qualify.compare.summary import Mask
from qualify.policy import DecisionPolicy
from qualify.record import RunRecord
from qualify.runtable import RunTable
from qualify.transcript import Arm, Decode, RunKey


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One arm beside the baseline.

    Attributes:
        arm: The arm.
        aligned: Its run beside the baseline's runs.
        placement: Rows of its tokens.
        masks: Strata of its run, bool [P].
        comparison: Figures.
        floor: Figures of the baseline's runs among each other.
        exact: True where the baseline's runs are identical.
        quiet: Nats beyond which one request is a finding; None where the floor is noisy.
        damage: What was hit, where anything was found.
    """

    arm: Arm
    aligned: Aligned
    placement: Placement
    masks: Mapping[str, Mask]
    comparison: ArmComparison
    floor: Spread
    exact: bool
    quiet: float | None
    damage: Damage

    def scenario(self, name: str) -> Sections:
        """One scenario, with the strata inside it."""
        layout = self.aligned.layout
        inside = scenario_mask(layout, name)
        masks = {part: mask[inside] for part, mask in self.masks.items()}
        return section(name, layout.part(inside), masks, self.floor.largest)


def compare_arm(
    record: RunRecord,
    policy: DecisionPolicy,
    arm: Arm,
    flaws: Mapping[RunKey, Flaws],
    earlier: Judged | None = None,
) -> Judged | None:
    """Lays an arm's run beside the baseline's and asks every rule.

    Forced decoding decides where there is any: it alone compares every position.

    Args:
        record: The run record.
        policy: Error rate and ceiling.
        arm: Candidate or control.
        flaws: What was found wrong with each run's answers.
        earlier: Another arm of the same record, compared before; saves comparing the baseline's runs again.

    Returns:
        None where there are not two baseline runs and one of the arm with common complete requests.
    """
    for decode in (Decode.FORCED, Decode.FREE):
        baselines, runs = _runs(record, Arm.BASELINE, decode), _runs(record, arm, decode)
        names = _common([*baselines, *runs[:1]], flaws) if len(baselines) > 1 and runs else []
        if names:
            aligned = align([*baselines, runs[0]], names, earlier.aligned if earlier else None)
            return _judged(record, policy, arm, aligned, runs[0])
    return None


def _judged(record: RunRecord, policy: DecisionPolicy, arm: Arm, aligned: Aligned, run: RunTable) -> Judged:
    layout, steps = aligned.layout, record.steps.get(arm)
    placement = place(run, steps)
    masks = _masks(aligned, placement, record, arm)
    sections = section(RUN, layout, masks | _scenario_masks(layout))
    evidence = ask(sections, policy)
    found = any(item.fired for item in evidence)
    quiet = quiet_limit(sections.whole, run_limits(policy))
    damage = locate(aligned, placement, RUN, policy.negligible_kld) if found else Damage()
    comparison = ArmComparison(
        arm=str(arm),
        decode=str(run.key.decode),
        requests=len(aligned.heads),
        spread=_spread(layout.nearest(layout.runs - 1), aligned.subject),
        excess=rounded(sections.whole.excess),
        evidence=tuple(sorted(evidence, key=_order)),
        rows=damage.rows,
        rows_recorded=placement.recorded,
        margin=margin(sections, policy),
        power=None if found else power(sections.whole, run_limits(policy)),
    )
    floor = _spread(layout.floor, aligned.floor)
    return Judged(arm, aligned, placement, masks, comparison, floor, sections.whole.exact, quiet, damage)


def _order(item: Evidence) -> tuple[bool, bool]:
    """What spoke comes first, and the whole run before its parts."""
    return not item.fired, item.scope != RUN


def _masks(aligned: Aligned, placement: Placement, record: RunRecord, arm: Arm) -> dict[str, Mask]:
    """Strata of the arm's run, in the positions of the layout."""
    own = aligned.own
    return {
        name: (own >= 0) & mask[np.maximum(own, 0)]
        for name, mask in strata(placement, record.steps.get(arm)).items()
    }


def _scenario_masks(layout: Layout) -> dict[str, Mask]:
    """Scenarios as parts of the run, where there are several."""
    names = sorted({str(name) for name in layout.scenarios})
    return {f"scenario {name}": scenario_mask(layout, name) for name in names} if len(names) > 1 else {}


def scenario_mask(layout: Layout, name: str) -> Mask:
    """Bool [P], positions of one scenario."""
    return np.repeat(layout.scenarios == name, np.diff(layout.starts))


def _runs(record: RunRecord, arm: Arm, decode: Decode) -> list[RunTable]:
    keys = [key for key in record.runs if (key.arm, key.decode) == (arm, decode)]
    return [record.runs[key] for key in sorted(keys, key=lambda key: key.number)]


def _common(runs: Sequence[RunTable], flaws: Mapping[RunKey, Flaws]) -> list[str]:
    """Judged requests that every run answered completely, given the same prompt and forced tokens."""
    sets = [
        {
            (head.request_id, head.prompt_sha256, head.forced_sha256)
            for head in run.heads
            if head.judged and usable(head)
        }
        for run in runs
    ]
    refused = frozenset().union(*(flaws[run.key].incomparable for run in runs))
    return sorted(name for name, _, _ in set.intersection(*sets) if name not in refused)


def _spread(values: npt.NDArray[np.float64], agreement: Agreement) -> Spread:
    known = values[~np.isnan(values)]
    some = len(known) > 0
    return Spread(
        positions=len(known),
        differ=int((known > 0).sum()),
        mean=rounded(float(known.mean())) if some else 0.0,
        p99=rounded(float(np.quantile(known, 0.99))) if some else 0.0,
        largest=rounded(float(known.max())) if some else 0.0,
        same_top=rounded(agreement.same_top),
        same_rank=rounded(agreement.same_rank),
        delta_mean=rounded(agreement.delta_mean),
        delta_largest=rounded(agreement.delta_largest),
    )
