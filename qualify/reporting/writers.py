"""All reports of one run by file name: what `qualify run` leaves behind and `qualify report` makes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qualify.evidence.digests import canonical_json
from qualify.reporting.html.page import html_report
from qualify.reporting.junit import junit
from qualify.reporting.material import Material as Material
from qualify.reporting.receipt import make_receipt

Writer = Callable[[Material], bytes]


def _receipt(material: Material) -> bytes:
    return canonical_json(make_receipt(material.plan, material.state, material.verdict))


def _junit(material: Material) -> bytes:
    return junit(material.verdict)


WRITERS: Mapping[str, Writer] = {
    "receipt.json": _receipt,
    "junit.xml": _junit,
    "report.html": html_report,
}
"""Each report's file name and what writes it; the same material gives the same bytes."""
