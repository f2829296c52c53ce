"""JUnit XML: a test case for each finding and each required cell of the coverage table."""

from __future__ import annotations

import re

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from qualify.findings import CoverageCell, Finding, Result, Verdict, Weight

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(verdict: Verdict) -> bytes:
    """Writes a verdict as JUnit XML.

    Args:
        verdict: The verdict. ``inconclusive`` is an error, never a skip: CI systems count skips as passes.

    Returns:
        The XML document.
    """
    suite = TestSuite(f"qualify {verdict.release}")
    suite.add_testcase(_verdict_case(verdict))
    for finding in verdict.findings:
        if finding.weight is not Weight.NOTE:
            suite.add_testcase(_finding_case(finding))
    for cell in verdict.coverage:
        if cell.satisfied is not None:
            suite.add_testcase(_coverage_case(cell))
    document = JUnitXml("qualify")
    document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    return bytes(document.tostring())  # type: ignore[no-untyped-call]


def _clean(text: str) -> str:
    # A server's log may hold characters that XML 1.0 forbids.
    return _NOT_XML.sub("?", text)


def _verdict_case(verdict: Verdict) -> TestCase:
    case = TestCase("verdict", classname="qualify.verdict")
    text = _clean("\n".join(verdict.reasons))
    if verdict.result is Result.REJECTED:
        case.result = [_with_text(Failure("rejected", "rejected"), text)]
    elif verdict.result is Result.INCONCLUSIVE:
        case.result = [_with_text(Error("inconclusive", "inconclusive"), text)]
    return case


def _finding_case(finding: Finding) -> TestCase:
    name = " ".join(str(part) for part in (finding.rule, finding.arm, finding.scenario) if part)
    case = TestCase(name, classname="qualify.findings")
    text = _clean("\n".join([finding.summary, finding.advice, *finding.evidence]))
    if finding.weight is Weight.DEFECT:
        case.result = [_with_text(Failure(_clean(finding.summary), finding.rule), text)]
    elif finding.weight is Weight.UNTESTED:
        case.result = [_with_text(Error(_clean(finding.summary), finding.rule), text)]
    elif finding.weight is Weight.WAIVED:
        case.result = [_with_text(Skipped(_clean(finding.summary), "waived"), text)]
    return case


def _coverage_case(cell: CoverageCell) -> TestCase:
    case = TestCase(cell.name, classname="qualify.coverage")
    if not cell.satisfied:
        text = f"reached {cell.reached}, required {cell.required}"
        case.result = [_with_text(Error(text, "not covered"), f"{text} (measured by {cell.how})")]
    return case


def _with_text(result: Failure | Error | Skipped, text: str) -> Failure | Error | Skipped:
    result.text = text
    return result
