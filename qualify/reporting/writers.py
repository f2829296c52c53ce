"""All reports of one run by file name: what `qualify run` leaves behind and `qualify report` makes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qualify.evidence.digests import canonical_json
from qualify.reporting.html.page import html_report
from qualify.reporting.junit import junit
from qualify.reporting.markdown import MARKDOWN, markdown
from qualify.reporting.material import Material as Material
from qualify.reporting.receipt import RECEIPT, make_receipt
from qualify.reporting.terminal import FULL_TEXT, full_text

Writer = Callable[[Material], bytes]


def _receipt(material: Material) -> bytes:
    return canonical_json(make_receipt(material.plan, material.state, material.verdict))


def _junit(material: Material) -> bytes:
    return junit(material.verdict, material.record)


def _text(material: Material) -> bytes:
    return full_text(material.verdict, material.bundle.root.name).encode()


def _markdown(material: Material) -> bytes:
    return markdown(material.verdict, material.bundle.root.name).encode()


WRITERS: Mapping[str, Writer] = {
    RECEIPT: _receipt,
    "junit.xml": _junit,
    "report.html": html_report,
    FULL_TEXT: _text,
    MARKDOWN: _markdown,
}
"""Each report's file name and what writes it; the same material gives the same bytes."""
