"""JUnit XML: a test case for each requirement, scenario and contract, beside the verdict's own.

What is not known is an error and never a skip: CI systems count skips as passes. Only what the policy waives
is skipped.
"""

from __future__ import annotations

import re
from itertools import groupby

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from qualify.findings import Verdict
from qualify.record import RunRecord
from qualify.reporting.cases import Case, Outcome, cases

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DECIMALS = 3  # of a second: the schema takes no more
_RESULTS = {Outcome.FAILED: Failure, Outcome.ERROR: Error, Outcome.WAIVED: Skipped}


def junit(verdict: Verdict, record: RunRecord) -> bytes:
    """Writes a verdict as JUnit XML.

    Args:
        verdict: The verdict.
        record: The evidence that it follows from.

    Returns:
        The XML document, valid by the schema of Jenkins' xUnit plugin (junit-10).
    """
    document = JUnitXml(_clean(f"qualify {verdict.release}"))
    for kind, group in groupby(cases(verdict, record), key=lambda case: case.kind):
        suite = TestSuite(_clean(f"qualify {verdict.release}: {kind}"))
        suite.timestamp = verdict.run_date
        if kind == "verdict":
            for name, value in (
                ("verdict", verdict.result),
                ("subject", verdict.subject),
                *((f"scope: {label}", value) for label, value in verdict.scope),
                *((f"limitation {number}", text) for number, text in enumerate(verdict.limitations, 1)),
            ):
                suite.add_property(name, _clean(value))
        for case in group:
            suite.add_testcase(_test_case(case))
        suite.update_statistics()  # type: ignore[no-untyped-call]
        document.add_testsuite(suite)
    # not by update_statistics, which also counts skips: junit-10 knows that attribute of suites only
    for count in ("tests", "failures", "errors"):
        setattr(document, count, sum(getattr(suite, count) for suite in document))
    document.time = round(sum(suite.time for suite in document), _DECIMALS)
    return bytes(document.tostring())  # type: ignore[no-untyped-call]


def _clean(text: str) -> str:
    # A server's log may hold characters that XML 1.0 forbids.
    return _NOT_XML.sub("?", text)


def _test_case(case: Case) -> TestCase:
    test = TestCase(_clean(case.name), classname=f"qualify.{case.kind}")
    if case.seconds is not None:
        test.time = round(case.seconds, _DECIMALS)
    message = _clean(case.message)
    text = _clean("\n".join((case.message, *case.details)).strip())
    if case.outcome is Outcome.PASSED:
        if text:
            test.system_out = text
        return test
    result = _RESULTS[case.outcome](message, case.outcome)
    result.text = text
    test.result = [result]
    return test
