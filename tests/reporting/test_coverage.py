"""How cells stand, by the findings that the judge itself makes of them."""

from __future__ import annotations

from dataclasses import replace

from qualify.compare.coverage.limits import shortfalls
from qualify.findings import CoverageCell
from qualify.gate import judge
from qualify.policy import CoveragePolicy
from qualify.reporting.cases import Kind, Outcome, cases
from qualify.reporting.coverage import Standing, standing
from tests.judgefactory import POLICY
from tests.reporting.judged import good

LET_GO = CoverageCell(
    name="preemptions",
    reached="0",
    required="at least 2",
    satisfied=False,
    scenario="mixed",
    kind="preemptions",
)
# one name is the start of the other's, and one scenario's demand is let go while the other's is not
CELLS = (
    LET_GO,
    replace(LET_GO, scenario="alone", kind="other"),
    replace(LET_GO, name="preemptions: twice", kind="other"),
    replace(LET_GO, reached="2", satisfied=True),
    replace(LET_GO, required="", satisfied=None),
)
STANDINGS = [Standing.LIMITATION, Standing.MISSED, Standing.MISSED, Standing.REACHED, Standing.SHOWN]


def test_only_the_cell_that_the_policy_lets_go_is_a_limitation() -> None:
    found = shortfalls(CELLS, CoveragePolicy(limitations_only=("preemptions",)))
    verdict = replace(judge(good(), POLICY, ""), coverage=CELLS, findings=tuple(found))
    assert [standing(verdict, cell) for cell in CELLS] == STANDINGS


def test_a_shortfall_is_one_case_and_not_two() -> None:
    record = good()
    found = shortfalls(CELLS, CoveragePolicy(limitations_only=("preemptions",)))
    verdict = replace(judge(record, POLICY, ""), coverage=CELLS, findings=tuple(found))
    told = [case for case in cases(verdict, record) if "preemptions" in case.name + case.message]
    requirements = [case.outcome for case in told if case.kind is Kind.REQUIREMENT]
    assert requirements == [Outcome.WAIVED, Outcome.ERROR, Outcome.ERROR, Outcome.PASSED]
