"""All reports of one bundle say the same: verdict, reasons, subject, findings and limitations."""

from __future__ import annotations

import datetime
import io
import json
import re
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from lxml import etree, html
from markdown_it import MarkdownIt
from rich.console import Console

from qualify.evidence.bundle import Bundle
from qualify.findings import Result, Weight
from qualify.policy import Policy
from qualify.rendering import write_reports
from qualify.reporting.html.page import MEANINGS, WAIVING
from qualify.reporting.material import Material
from qualify.reporting.terminal import print_verdict
from qualify.reporting.writers import WRITERS
from tests.judgefactory import build, packed
from tests.reporting.html.material import material
from tests.reporting.judged import RECORDS, WORLD

SUBJECT = "sha256:" + "ab" * 32
COUNTED = (Weight.DEFECT, Weight.UNTESTED)


def same(text: str) -> str:
    """A text without what reports may show otherwise: characters that cannot be printed, and spaces."""
    return "".join(character for character in text if character.isalnum())


@dataclass
class Said:
    """What one report says; a number where it may cut a list and counts what it leaves out."""

    verdict: str
    subject: str
    reasons: list[str] | int
    against: set[str] | int
    limitations: list[str] | int


@pytest.fixture(scope="module", params=RECORDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Material:
    root = tmp_path_factory.mktemp(request.param)
    found = material(replace(RECORDS[request.param](), subject=SUBJECT), root)
    found.bundle.write("verdict.json", found.verdict)
    assert write_reports(found, Bundle(root), print) == ()
    return found


def of_verdict(root: Path) -> Said:
    told = json.loads((root / "verdict.json").read_bytes())
    against = [item["summary"] for item in told["findings"] if item["weight"] in COUNTED]
    return Said(told["result"], told["subject"], told["reasons"], {*map(same, against)}, told["limitations"])


def of_receipt(root: Path) -> Said:
    told = json.loads((root / "receipt.json").read_bytes())
    against = [item["summary"] for item in told["findings"] if item["weight"] in COUNTED]
    assert len(against) == told["counts"]["defect"] + told["counts"]["untested"]
    return Said(told["verdict"], told["subject"], told["reasons"], {*map(same, against)}, told["limitations"])


def of_junit(root: Path) -> Said:
    document = etree.parse(root / "junit.xml").getroot()
    told = {item.get("name"): item.get("value") for item in document.iter("property")}
    (case,) = [case for case in document.iter("testcase") if case.get("classname") == "qualify.verdict"]
    (child,) = case
    words = {"failure": "rejected", "error": "inconclusive", "system-out": "qualified"}
    assert words[child.tag] == told["verdict"]
    limitations = [value for name, value in told.items() if name.startswith("limitation ")]
    lines = [
        same(line)
        for case in document.iter("testcase")
        for child in case
        if child.tag in ("failure", "error")
        for line in (child.text or "").splitlines()
    ]
    return Said(told["verdict"], told["subject"], (child.text or "").splitlines(), {*lines}, limitations)


def of_text(root: Path) -> Said:
    sections: dict[str, list[str]] = {}
    title = ""
    for line in (root / "summary.txt").read_text().splitlines():
        if line.startswith("  - "):
            sections[title].append(line.removeprefix("  - "))
        else:
            title = line
            sections.setdefault(title, [])
    (verdict,) = [title.split()[1] for title in sections if title.startswith("verdict: ")]
    (subject,) = sections["subject"]
    reasons, others = sections.get("reasons", []), sections.get("also found", [])
    return Said(verdict, subject, reasons, len(reasons) + len(others), sections.get("limitations", []))


def of_markdown(root: Path) -> Said:
    tokens = MarkdownIt("commonmark").enable("table").parse((root / "summary.md").read_text())
    counts = {"Reasons": 0, "Also open": 0, "Limitations": 0}
    heading, pairs, title = "", "", ""
    for token in (token for token in tokens if token.type == "inline"):
        line = "".join(part.content for part in token.children)
        if token.level == 1:
            heading, pairs, title = heading or line, pairs or (line if heading else ""), line
        elif token.level == 3 and title in counts:  # an item; cells of the table lie deeper
            more = re.fullmatch(r"and (\d+) more", line)
            counts[title] += int(more[1]) if more else 1
    (subject,) = re.findall(r"Subject: (sha256:[0-9a-f]{64})", pairs)
    against = counts["Reasons"] + counts["Also open"]
    return Said(heading.split(": ")[1], subject, counts["Reasons"], against, counts["Limitations"])


def of_html(root: Path) -> tuple[Said, str]:
    page = html.fromstring((root / "report.html").read_bytes())
    (box,) = page.xpath("//section[contains(@class, 'verdict')]")
    (word,) = box.xpath("./h2")
    reasons = [item.text_content() for item in box.xpath("./ul[1]/li")]
    text = page.text_content()
    (subject,) = {*re.findall(f"{SUBJECT}", text)}
    return Said(word.text_content(), subject, reasons, 0, 0), same(text)


def count(value: list[str] | set[str] | int) -> int:
    return value if isinstance(value, int) else len(value)


@pytest.mark.parametrize("report", [of_receipt, of_junit, of_text, of_markdown])
def test_each_report_says_what_the_verdict_says(made: Material, report) -> None:
    root = made.bundle.root
    expected, said = of_verdict(root), report(root)
    assert said.verdict == expected.verdict == made.verdict.result
    assert said.subject == expected.subject
    assert count(said.reasons) == len(expected.reasons)
    assert count(said.limitations) == len(expected.limitations)
    for one, other in ((said.reasons, expected.reasons), (said.limitations, expected.limitations)):
        if isinstance(one, list):  # a reason may be followed by what to do about it
            assert all(same(text).startswith(same(want)) for text, want in zip(one, other, strict=True))
    if isinstance(said.against, set):
        assert expected.against <= said.against
    else:
        told = {*map(same, expected.reasons)}
        assert said.against == len(expected.reasons) + len(expected.against - told)


def test_the_page_says_what_the_verdict_says(made: Material) -> None:
    expected = of_verdict(made.bundle.root)
    said, text = of_html(made.bundle.root)
    assert (said.verdict, said.subject) == (expected.verdict, expected.subject)
    assert [*map(same, said.reasons)] == [*map(same, expected.reasons)]
    assert all(finding in text for finding in expected.against)
    assert all(same(limitation) in text for limitation in expected.limitations)


def test_no_report_holds_control_characters(made: Material) -> None:
    for name in (*WRITERS, "verdict.json"):
        content = (made.bundle.root / name).read_bytes().decode()
        assert {found for found in content if unicodedata.category(found) == "Cc"} <= {"\n"}, name


@pytest.fixture
def waived(tmp_path: Path) -> Material:
    """A candidate with a fault, and a policy that waives what was found of it."""
    waiver = {
        "rule": "divergence",
        "owner": "kernel team",
        "reason": "known fault of one row, to be fixed in the next release",
        "expires": datetime.date(2027, 1, 1),
    }
    policy = Policy.model_validate({"format": "qualify/policy/1", "name": "test", "waivers": [waiver]})
    found = material(build(WORLD, candidate=packed), tmp_path, policy=policy)
    assert found.verdict.result is Result.QUALIFIED
    return found


def verdict_box(root: Path) -> str:
    page = html.fromstring((root / "report.html").read_bytes())
    (box,) = page.xpath("//section[contains(@class, 'verdict')]")
    return str(box.text_content())


def test_no_report_hides_what_was_waived_or_says_the_opposite(waived: Material) -> None:
    root = waived.bundle.root
    assert write_reports(waived, Bundle(root), print) == ()
    (summary,) = [item.summary for item in waived.verdict.findings if item.weight is Weight.WAIVED]
    box = verdict_box(root)
    assert same(summary) in same(box)
    assert "kernel team until 2027-01-01" in box
    assert WAIVING in box
    assert MEANINGS[Result.QUALIFIED] not in box
    for text in (told_on_a_terminal(waived), *((root / name).read_text() for name in WRITERS)):
        assert "no more than the baseline's own runs differ" not in text
    document = etree.parse(root / "junit.xml").getroot()
    skipped = {case.get("name") for case in document.iter("testcase") if case.find("skipped") is not None}
    assert skipped == {"the candidate differs no more than the baseline's noise", "mixed"}
    told = json.loads((root / "receipt.json").read_bytes())
    assert [item["weight"] for item in told["findings"]] == ["waived"]


def told_on_a_terminal(made: Material) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24, force_terminal=True, color_system=None)
    print_verdict(console, made.verdict, "here")
    return screen.getvalue()


def test_what_is_waived_is_told_where_something_else_decides(waived: Material) -> None:
    root = waived.bundle.root
    made = replace(waived, verdict=replace(waived.verdict, result=Result.REJECTED, reasons=("A defect.",)))
    assert write_reports(made, Bundle(root), print) == ()
    (summary,) = [item.summary for item in made.verdict.findings if item.weight is Weight.WAIVED]
    assert same(f"Waived by the policy: {summary} (waived by kernel team") in same(verdict_box(root))
    assert MEANINGS[Result.REJECTED] in verdict_box(root)
    lines = (root / "summary.txt").read_text().splitlines()
    assert lines[lines.index("waived by the policy") + 1] == f"  - {summary}"
    assert "waived by the policy" in told_on_a_terminal(made)
    assert "**Waived**" in (root / "summary.md").read_text()
