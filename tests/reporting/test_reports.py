"""Reports say what the verdict says, in every form."""

import io
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from qualify.findings import CoverageCell, Finding, Result, Verdict, Weight
from qualify.reporting.junit import junit
from qualify.reporting.progress import Progress
from qualify.reporting.terminal import print_verdict
from qualify.transcript import Arm


def verdict(result: Result, *findings: Finding) -> Verdict:
    return Verdict(
        result=result,
        release="ds4-cpu",
        run_date="2026-01-02",
        subject="sha256:abc",
        scope=(("device", "CPU"), ("replay", "emulated replay")),
        policy_sha256="0" * 64,
        reasons=("because of this",),
        findings=findings,
        coverage=(
            CoverageCell(name="rows in one step", reached="8", required="8", satisfied=True, how="step log"),
            CoverageCell(name="replayed share", reached="not measured", required="0.95", satisfied=False),
            CoverageCell(name="longest context", reached="3000"),
        ),
        limitations=("no GPU was there",),
    )


DEFECT = Finding(
    rule="divergence",
    weight=Weight.DEFECT,
    summary="rows 1 to 7 differ",
    advice="look at the stride",
    arm=Arm.CANDIDATE,
    scenario="mixed",
    evidence=("NUL \x00 and [bold]markup[/bold]",),
)
UNTESTED = Finding(rule="coverage", weight=Weight.UNTESTED, summary="not enough rows")
WAIVED = Finding(rule="loops", weight=Weight.WAIVED, summary="known loop")
NOTE = Finding(rule="note", weight=Weight.NOTE, summary="nothing")


def cases(document: bytes) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(document)
    return {case.get("name"): case for case in root.iter("testcase")}


@pytest.mark.parametrize(
    ("result", "tag"),
    [(Result.QUALIFIED, None), (Result.REJECTED, "failure"), (Result.INCONCLUSIVE, "error")],
)
def test_junit_verdict(result, tag):
    case = cases(junit(verdict(result)))["verdict"]
    assert [child.tag for child in case] == ([tag] if tag else [])


def test_junit_cases():
    found = cases(junit(verdict(Result.REJECTED, DEFECT, UNTESTED, WAIVED, NOTE)))
    tags = {name: [child.tag for child in case] for name, case in found.items()}
    assert tags == {
        "verdict": ["failure"],
        "divergence candidate mixed": ["failure"],
        "coverage": ["error"],
        "loops": ["skipped"],
        "rows in one step": [],
        "replayed share": ["error"],
    }
    assert "NUL ? and" in found["divergence candidate mixed"][0].text


def test_terminal_is_plain_where_it_is_no_terminal():
    stream = io.StringIO()
    print_verdict(Console(file=stream, width=110), verdict(Result.REJECTED, DEFECT, NOTE), "bundles/x")
    text = stream.getvalue()
    for said in (
        "verdict: rejected",
        "emulated replay",
        "rows 1 to 7 differ",
        "look at the stride",
        "0.95 MISSED",
        "no GPU was there",
        "evidence: bundles/x",
    ):
        assert said in text
    assert "\x1b" not in text
    assert "nothing" not in text


def test_progress_is_quiet_and_plain_in_a_log():
    stream = io.StringIO()
    progress = Progress(stream, every_s=3600)
    progress.say("candidate: starting")
    for _ in range(100):
        progress.wait("server")
    assert stream.getvalue() == "[  0:00] candidate: starting\n"


def test_progress_repeats_what_is_waited_for():
    stream = io.StringIO()
    progress = Progress(stream, every_s=0)
    progress.wait("server")
    assert "... server\n" in stream.getvalue()
