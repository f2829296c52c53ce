"""What earlier runs have done already: whole bundles, and arms that are taken over into a new one."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import EvidenceError, QualifyError
from qualify.evidence.bundle import MANIFEST, Bundle, RunState
from qualify.evidence.verification import check_written_verdict
from qualify.findings import Result, Verdict, Weight
from qualify.judging import judge_bundle
from qualify.plan import Plan, PlannedArm
from qualify.record import ArmRecord, ArmState
from qualify.transcript import Arm

# An arm that ended so is evidence that stands; any other end says nothing and is served again.
_FINAL = frozenset({ArmState.SERVED, ArmState.START_FAILED, ArmState.DIED, ArmState.HUNG})

_ANOTHER_TIME = frozenset(
    {
        "forced-tokens",
        "gpu-error",
        "probability",
        "prompt-differs",
        "request-differs",
        "request-duplicate",
        "request-failed",
        "request-missing",
        "request-unknown",
        "restart",
        "run-missing",
        "shared-answers",
        "top-logprobs",
    }
)
"""Rules whose untested findings about an arm that served to its end advise to run again: it may give the
evidence. What other rules miss (coverage, the control, the floor) the same inputs would miss again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A bundle to which another run with the same inputs would add nothing.

    Attributes:
        bundle: The bundle; every file is as it was sealed.
        verdict: What its evidence gives; the one that stands in it.
    """

    bundle: Bundle
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was taken over.

    Attributes:
        arms: (arm, name of the bundle that it came from) of each.
        evidence_date: ISO date and time (UTC) of the oldest evidence in that bundle; empty where nothing was.
    """

    arms: tuple[tuple[str, str], ...] = ()
    evidence_date: str = ""


def bundles_of(directory: Path) -> list[Bundle]:
    """Bundles, newest first; also of other releases: arms are the same where their digests are.

    Args:
        directory: Directory that holds bundles.
    """
    roots = [path for path in directory.glob("*") if (path / "run.json").is_file()]
    return [Bundle(path) for path in sorted(roots, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def finished_bundle(directory: Path, plan: Plan, say: Callable[[str], None]) -> Finished | None:
    """The newest bundle of the same plan to which a run could add nothing; None where there is none.

    Args:
        directory: Directory that holds bundles.
        plan: The plan.
        say: Told of each complete bundle of the plan that does not do, and why.
    """
    for bundle in bundles_of(directory):
        if _state(bundle) != ("complete", plan.plan_id) or not (bundle.root / MANIFEST).exists():
            continue
        try:
            verdict = judge_bundle(bundle)
            check_written_verdict(bundle, verdict)
        except QualifyError as error:
            say(f"{bundle.root.name} is complete, and is not used: {str(error).splitlines()[0]}")
            continue
        again = to_repeat(bundle, verdict) if verdict.result is Result.INCONCLUSIVE else ()
        if not again:
            return Finished(bundle, verdict)
        say(f"{bundle.root.name} is {verdict.result}; to be served again: {', '.join(again)}")
    return None


def to_repeat(bundle: Bundle, verdict: Verdict) -> tuple[Arm, ...]:
    """Arms of which another attempt may give the evidence that is missing.

    Args:
        bundle: A bundle.
        verdict: What its evidence gives.

    Returns:
        Arms that served to their end, and about whose evidence something is untested that may be otherwise
        another time; in the arms' order. An arm that died or did not start stands: that is evidence.
    """
    named = {
        finding.arm
        for finding in verdict.findings
        if finding.weight is Weight.UNTESTED and finding.rule in _ANOTHER_TIME
    }
    return tuple(arm for arm in Arm if arm in named and _end(bundle, arm) is ArmState.SERVED)


def _state(bundle: Bundle) -> tuple[str, str]:
    try:
        state = bundle.read("run.json", RunState)
    except EvidenceError:
        return ("unreadable", "")
    return (state.status, state.plan_id)


def _end(bundle: Bundle, arm: Arm) -> ArmState | None:
    return bundle.read(f"arms/{arm}/arm.json", ArmRecord).state if arm_ended(bundle, arm) else None


def adopt_arms(plan: Plan, bundle: Bundle, directory: Path, say: Callable[[str], None]) -> Adopted:
    """Takes over the arms that an earlier run with the same inputs has finished.

    All of them come from one bundle, and the baseline is the first: the others were driven with its tokens.

    Args:
        plan: The plan.
        bundle: Where they go.
        directory: Directory that holds the earlier bundles.
        say: Told of each arm.

    Returns:
        What was taken over. Its age goes with it: an arm that was itself taken over keeps its date.
    """
    best: tuple[int, Bundle | None] = (0, None)
    for earlier in bundles_of(directory):
        same = _same(earlier, plan)
        if same > best[0] and (count := _sound(earlier, plan.arms[:same])) > best[0]:
            best = (count, earlier)
    count, source = best
    if source is None:
        return Adopted()
    date = source.read("run.json", RunState).oldest
    for planned in plan.arms[:count]:
        shutil.copytree(source.arm(planned.arm), bundle.arm(planned.arm))
        say(f"{planned.arm}: unchanged, taken from {source.root.name} (served {date[:10]})")
    return Adopted(tuple((str(planned.arm), source.root.name) for planned in plan.arms[:count]), date)


def _same(bundle: Bundle, plan: Plan) -> int:
    """How many of the plan's first arms the bundle has finished with the same inputs."""
    if not (bundle.root / MANIFEST).exists():
        return 0
    try:
        old = {arm.arm: arm.stage_sha256 for arm in bundle.read("plan.json", Plan).arms}
        ends = {arm: _end(bundle, arm) for arm in old}
    except EvidenceError:
        return 0
    same = (
        old.get(planned.arm) == planned.stage_sha256 and ends.get(planned.arm) in _FINAL
        for planned in plan.arms
    )
    return sum(1 for _ in itertools.takewhile(bool, same))


def _sound(bundle: Bundle, arms: Sequence[PlannedArm]) -> int:
    """How many of the bundle's first arms are as they were sealed, and would not do better another time."""
    try:
        again = to_repeat(bundle, judge_bundle(bundle))
    except QualifyError:
        return 0
    return sum(1 for _ in itertools.takewhile(lambda planned: planned.arm not in again, arms))


def arm_ended(bundle: Bundle, arm: Arm) -> bool:
    """True where an arm has been served to its end in this bundle, whatever the end was."""
    return (bundle.arm(arm) / "arm.json").exists()
