"""What earlier runs have done already: whole bundles, and arms that are taken over into a new one."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

from qualify.errors import EvidenceError
from qualify.evidence.bundle import MANIFEST, Bundle, RunState, verify
from qualify.plan import Plan
from qualify.record import ArmRecord, ArmState
from qualify.transcript import Arm

# An arm that ended so is evidence that stands; any other end says nothing and is served again.
_FINAL = frozenset({ArmState.SERVED, ArmState.START_FAILED, ArmState.DIED, ArmState.HUNG})


def bundles_of(directory: Path) -> list[Bundle]:
    """Bundles, newest first; also of other releases: arms are the same where their digests are.

    Args:
        directory: Directory that holds bundles.
    """
    roots = [path for path in directory.glob("*") if (path / "run.json").is_file()]
    return [Bundle(path) for path in sorted(roots, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def finished_bundle(directory: Path, plan: Plan) -> Bundle | None:
    """The newest complete and sealed bundle of the same plan; None where there is none.

    Args:
        directory: Directory that holds bundles.
        plan: The plan.
    """
    for bundle in bundles_of(directory):
        if _state(bundle) == ("complete", plan.plan_id) and (bundle.root / MANIFEST).exists():
            return bundle
    return None


def _state(bundle: Bundle) -> tuple[str, str]:
    try:
        state = bundle.read("run.json", RunState)
    except EvidenceError:
        return ("unreadable", "")
    return (state.status, state.plan_id)


def adopt_arms(
    plan: Plan, bundle: Bundle, directory: Path, say: Callable[[str], None]
) -> tuple[tuple[str, str], ...]:
    """Takes over the arms that an earlier run with the same inputs has finished.

    All of them come from one bundle, and the baseline is the first: the others were driven with its tokens.

    Args:
        plan: The plan.
        bundle: Where they go.
        directory: Directory that holds the earlier bundles.
        say: Told of each arm.

    Returns:
        (arm, name of the bundle that it came from) of each.
    """
    best: tuple[int, Bundle | None] = (0, None)
    for earlier in bundles_of(directory):
        count = _adoptable(earlier, plan)
        if count > best[0]:
            best = (count, earlier)
    count, source = best
    if source is None:
        return ()
    for planned in plan.arms[:count]:
        shutil.copytree(source.arm(planned.arm), bundle.arm(planned.arm))
        say(f"{planned.arm}: unchanged, taken from {source.root.name}")
    return tuple((str(planned.arm), source.root.name) for planned in plan.arms[:count])


def _adoptable(bundle: Bundle, plan: Plan) -> int:
    """How many of the plan's first arms the bundle has finished with the same inputs."""
    if not (bundle.root / MANIFEST).exists():
        return 0
    try:
        verify(bundle)
        old = {arm.arm: arm.stage_sha256 for arm in bundle.read("plan.json", Plan).arms}
        ends = {
            arm: bundle.read(f"arms/{arm}/arm.json", ArmRecord).state for arm in old if arm_ended(bundle, arm)
        }
    except EvidenceError:
        return 0
    same = (
        old.get(planned.arm) == planned.stage_sha256 and ends.get(planned.arm) in _FINAL
        for planned in plan.arms
    )
    return sum(1 for _ in itertools.takewhile(bool, same))


def arm_ended(bundle: Bundle, arm: Arm) -> bool:
    """True where an arm has been served to its end in this bundle, whatever the end was."""
    return (bundle.arm(arm) / "arm.json").exists()
