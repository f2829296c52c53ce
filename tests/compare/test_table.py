from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from qualify.compare.table import ANY, TABLE, Facts, as_markdown, decide, facts
from qualify.findings import Finding, Result, Weight
from qualify.transcript import Arm

ROOT = Path(__file__).parents[2]
VALUES = {
    "candidate": ("defect", "no defect"),
    "control": ("caught", "not caught", "switched off"),
    "floor": ("known", "not known"),
    "coverage": ("reached", "short"),
    "evidence": ("complete", "incomplete"),
}
EVERYTHING = [Facts(*values) for values in product(*VALUES.values())]


def test_every_combination_is_decided_and_only_one_passes() -> None:
    passing = [seen for seen in EVERYTHING if decide(seen).result is Result.QUALIFIED]
    assert passing == [Facts("no defect", "caught", "known", "reached", "complete")]


def test_a_defect_always_rejects_and_nothing_else_does() -> None:
    for seen in EVERYTHING:
        assert (decide(seen).result is Result.REJECTED) == (seen.candidate == "defect")


def test_every_row_decides_something() -> None:
    assert {id(decide(seen)) for seen in EVERYTHING} == {id(row) for row in TABLE}
    assert not any(ANY in values for values in VALUES.values())


def finding(rule: str, weight: Weight) -> Finding:
    return Finding(rule=rule, weight=weight, arm=Arm.CANDIDATE, summary="said")


@pytest.mark.parametrize(
    ("findings", "configured", "expected"),
    [
        ([], False, Facts("no defect", "switched off", "known", "reached", "complete")),
        ([], True, Facts("no defect", "not caught", "known", "reached", "complete")),
        (
            [finding("control", Weight.SATISFIED)],
            True,
            Facts("no defect", "caught", "known", "reached", "complete"),
        ),
        (
            [finding("control", Weight.SATISFIED), finding("control", Weight.UNTESTED)],
            True,
            Facts("no defect", "not caught", "known", "reached", "complete"),
        ),
        (
            [finding("floor", Weight.UNTESTED), finding("coverage", Weight.UNTESTED)],
            True,
            Facts("no defect", "not caught", "not known", "short", "complete"),
        ),
        (
            [finding("a-rule-of-the-future", Weight.UNTESTED)],
            True,
            Facts("no defect", "not caught", "known", "reached", "incomplete"),
        ),
        (
            [finding("divergence", Weight.DEFECT)],
            True,
            Facts("defect", "not caught", "known", "reached", "complete"),
        ),
        (
            [finding("divergence", Weight.WAIVED), finding("known-answer", Weight.NOTE)],
            True,
            Facts("no defect", "not caught", "known", "reached", "complete"),
        ),
    ],
)
def test_findings_become_facts(findings: list[Finding], configured: bool, expected: Facts) -> None:
    assert facts(findings, configured) == expected


def test_documentation_prints_this_table() -> None:
    text = (ROOT / "docs" / "judgement.md").read_text()
    assert as_markdown() in text
