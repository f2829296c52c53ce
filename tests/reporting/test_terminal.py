"""Reports say what the verdict says, in every form."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from qualify.findings import CoverageCell, Finding, Result, Verdict, Weight
from qualify.reporting.terminal import full_text, print_verdict
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
    summary="rows 1 to 7\x1b[2J differ",
    advice="look at the stride",
    arm=Arm.CANDIDATE,
    scenario="mixed",
    evidence=("NUL \x00 and [bold]markup[/bold]",),
)
UNTESTED = Finding(rule="coverage", weight=Weight.UNTESTED, summary="not enough rows")
WAIVED = Finding(rule="loops", weight=Weight.WAIVED, summary="known loop")
NOTE = Finding(rule="note", weight=Weight.NOTE, summary="nothing")


def test_terminal_is_plain_where_it_is_no_terminal():
    stream = io.StringIO()
    print_verdict(Console(file=stream, width=110), verdict(Result.REJECTED, DEFECT, NOTE), "bundles/x")
    text = stream.getvalue()
    for said in (
        "verdict: rejected",
        "emulated replay",
        "rows 1 to 7 [2J differ",
        "look at the stride",
        "0.95 MISSED",
        "no GPU was there",
        "evidence: bundles/x",
    ):
        assert said in text
    assert "\x1b" not in text
    assert "nothing" not in text


def terminal(width: int, height: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False)


def many(result: Result) -> Verdict:
    findings = tuple(
        replace(UNTESTED, summary=f"gap number {number} of the run. " * 9) for number in range(40)
    )
    shown = verdict(result, DEFECT, *findings)
    return replace(
        shown,
        reasons=tuple(finding.summary for finding in findings),
        limitations=tuple(f"limitation {number}: " + "not tried " * 20 for number in range(30)),
        scope=tuple((f"label {number}", "value " * 10) for number in range(9)),
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("result", Result)
def test_it_fits_on_one_screen_of_a_terminal(width, height, result):
    console = terminal(width, height)
    print_verdict(console, many(result), "bundles/x", rest="summary.txt")
    lines = console.file.getvalue().splitlines()
    assert len(lines) < height
    text = console.file.getvalue()
    for said in (
        str(result),
        "sha256:abc",
        "gap number 0",
        "limitation 0",
        "more in summary.txt",
        "bundles/x",
    ):
        assert said in text
    assert "replayed share" in text


def test_the_full_text_leaves_nothing_out_and_obeys_no_environment(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = full_text(many(Result.REJECTED), "x")
    for number in range(30):
        assert f"limitation {number}:" in text
    for number in range(40):
        assert f"gap number {number} " in text
    assert "rows 1 to 7 [2J differ look at the stride" in text
    assert "\x1b" not in text
