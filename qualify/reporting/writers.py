"""All reports of one run by file name: what `qualify run` leaves in the bundle and `qualify report` makes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qualify.evidence.bundle import Bundle, RunState
from qualify.evidence.digests import canonical_json
from qualify.findings import Verdict
from qualify.plan import Plan
from qualify.policy import Policy
from qualify.record import RunRecord
from qualify.reporting.junit import junit
from qualify.reporting.receipt import make_receipt


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


Writer = Callable[[Material], bytes]


def _receipt(material: Material) -> bytes:
    return canonical_json(make_receipt(material.plan, material.state, material.verdict))


def _junit(material: Material) -> bytes:
    return junit(material.verdict)


WRITERS: Mapping[str, Writer] = {
    "receipt.json": _receipt,
    "junit.xml": _junit,
}
"""Each report's file name and what writes it; the same material gives the same bytes."""
