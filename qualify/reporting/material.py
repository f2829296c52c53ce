"""What reports are made from."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.evidence.bundle import Bundle, RunState
from qualify.findings import Verdict
from qualify.plan import Plan
from qualify.policy import Policy
from qualify.record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What every report is made from; nothing else may go into one.

    Attributes:
        bundle: Where the evidence lies.
        plan: What was run.
        state: How the run ended.
        record: The evidence as the gate saw it.
        policy: What it was judged by.
        verdict: What follows from it.
        links: Relative URL of the bundle as seen from where the reports are written; ends with ``/``.
    """

    bundle: Bundle
    plan: Plan
    state: RunState
    record: RunRecord
    policy: Policy
    verdict: Verdict
    links: str = "./"
