"""Makes the reports of a bundle: at the end of a run, and again from any bundle that is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from qualify.evidence.bundle import Bundle, RunState
from qualify.judging import judge_evidence
from qualify.plan import Plan
from qualify.reporting.material import Material
from qualify.reporting.writers import WRITERS, Writer

_WORTH_TELLING_S = 1.0


def read_material(bundle: Bundle, policy_file: Path | None = None, links: str = "./") -> Material:
    """Judges a bundle and gathers what its reports are made from.

    Args:
        bundle: A bundle, complete or not.
        policy_file: Used instead of the bundle's own policy.
        links: Relative URL of the bundle as seen from where the reports will lie; ends with ``/``.

    Returns:
        The material; its verdict is the one of `qualify.judging.judge_bundle`.

    Raises:
        EvidenceError: The bundle is damaged.
        UsageError: The policy is wrong.
    """
    judged = judge_evidence(bundle, policy_file)
    return Material(
        bundle=bundle,
        plan=bundle.read("plan.json", Plan),
        state=bundle.read("run.json", RunState),
        record=judged.record,
        policy=judged.policy,
        verdict=judged.verdict,
        links=links,
    )


def write_reports(
    material: Material,
    target: Bundle,
    say: Callable[[str], None],
    writers: Mapping[str, Writer] = WRITERS,
) -> tuple[str, ...]:
    """Writes every report.

    A report tells the verdict and does not make it: one that cannot be written is told of and left out, and
    the others, the verdict and the seal are as they would have been.

    Args:
        material: What they are made from.
        target: Where they go: the bundle itself, or any directory.
        say: Tells the user what happens.
        writers: What writes each of them.

    Returns:
        Names of reports that could not be written.
    """
    failed = []
    for name, writer in writers.items():
        began = time.monotonic()
        try:
            target.write_bytes(name, writer(material))
        except Exception as error:  # whatever it is: no fault of a report may cost the run its verdict
            failed.append(name)
            say(f"REPORT MISSING: {name} could not be written: {type(error).__name__}: {error}")
        else:
            took = time.monotonic() - began
            if took >= _WORTH_TELLING_S:
                say(f"report: {name}, {took:.1f} s")
    return tuple(failed)
