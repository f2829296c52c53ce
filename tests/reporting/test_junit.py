"""JUnit XML: valid by Jenkins' schema, read alike by two parsers, and no pass without evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from junit2htmlreport.parser import Junit
from junitparser import Error, Failure, JUnitXml, Skipped
from lxml import etree

from qualify.findings import Weight
from qualify.gate import judge
from qualify.record import ArmState, RunRecord
from qualify.reporting.junit import junit
from qualify.transcript import Arm, Decode
from tests.compare.test_alone import served as served_alone
from tests.judgefactory import POLICY, no_fault, with_arm, without_runs
from tests.reporting.judged import HOSTILE, RECORDS, SHA256, contract, good, judged

SCHEMA = etree.XMLSchema(file=str(Path(__file__).parent / "schemas/junit-10.xsd"))
TAGS = {Failure: "failure", Error: "error", Skipped: "skipped"}


def outcomes(document: bytes) -> dict[tuple[str, str], str]:
    """(class, name) -> failure, error, skipped or passed, as junitparser reads it."""
    found = {}
    for suite in JUnitXml.fromstring(document):
        for case in suite:
            tags = [TAGS[type(result)] for result in case.result]
            assert len(tags) <= 1
            key = (str(case.classname), str(case.name))
            assert key not in found, f"two cases are called {key}"
            found[key] = tags[0] if tags else "passed"
    return found


def outcomes_by_another_parser(path: Path) -> dict[tuple[str, str], str]:
    """The same as junit2html reads it, which does not tell errors from failures."""
    return {
        (case.testclass.name, case.name): case.outcome()
        for suite in Junit(str(path)).suites
        for case in suite.all()
    }


def of(record: RunRecord) -> dict[tuple[str, str], str]:
    return outcomes(junit(judge(record, POLICY, SHA256), record))


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_valid_by_jenkins_schema(name: str) -> None:
    SCHEMA.assertValid(etree.fromstring(junit(*judged(name))))


def test_the_schema_refuses_what_is_not_junit() -> None:
    document = junit(*judged("good")).replace(b"<error", b"<mistake").replace(b"testcase", b"case")
    assert not SCHEMA.validate(etree.fromstring(document))


@pytest.mark.parametrize("name", RECORDS)
def test_two_parsers_read_the_same(name: str, tmp_path: Path) -> None:
    document = junit(*judged(name))
    (tmp_path / "junit.xml").write_bytes(document)
    words = {"failure": "failed", "error": "failed"}
    expected = {key: words.get(outcome, outcome) for key, outcome in outcomes(document).items()}
    assert outcomes_by_another_parser(tmp_path / "junit.xml") == expected


@pytest.mark.parametrize("name", RECORDS)
def test_the_counts_are_those_of_the_cases(name: str) -> None:
    document = junit(*judged(name))
    root, found = etree.fromstring(document), list(outcomes(document).values())
    told = {tag: int(root.get(tag)) for tag in ("tests", "failures", "errors")}
    assert told == {"tests": len(found), "failures": found.count("failure"), "errors": found.count("error")}


def test_arms_and_scenarios_have_their_times_and_nothing_else_has() -> None:
    record = good()
    arms = {arm: replace(entry, started_s=10.1234) for arm, entry in record.arms.items()}
    document = etree.fromstring(junit(judge(record, POLICY, SHA256), replace(record, arms=arms)))
    SCHEMA.assertValid(document)
    times = {case.get("name"): case.get("time") for case in document.iter("testcase") if case.get("time")}
    # a run lasts from 0 to 2 s: three of the baseline, two of each other arm; seven runs drive each scenario
    assert times == {
        "the baseline is served to the end": "16.123",
        "the candidate is served to the end": "14.123",
        "the control is served to the end": "14.123",
        "alone": "14.0",
        "mixed": "14.0",
    }
    assert float(document.get("time")) == pytest.approx(sum(map(float, times.values())))


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("good", "passed"), ("rejected", "failure"), ("inconclusive", "error"), ("machinery", "error")],
)
def test_the_verdict_is_a_case_and_inconclusive_an_error(name: str, outcome: str) -> None:
    found = outcomes(junit(*judged(name)))
    assert found["qualify.verdict", "verdict"] == outcome
    assert "skipped" not in found.values()


def test_of_a_qualified_run_every_case_passes() -> None:
    found = of(good())
    assert set(found.values()) == {"passed"}
    assert found["qualify.scenario", "mixed"] == "passed"
    assert found["qualify.requirement", "the control is caught in mixed"] == "passed"


def test_of_a_qualified_run_with_requests_sent_alone_every_case_passes() -> None:
    found = of(served_alone(no_fault, no_fault))
    assert set(found.values()) == {"passed"}
    assert found["qualify.scenario", "eight"] == "passed"


def test_a_scenario_whose_requests_lack_an_answer_alone_is_an_error() -> None:
    record = served_alone(no_fault, no_fault)
    lacking = replace(
        record, runs={key: run for key, run in record.runs.items() if key.decode is not Decode.ALONE}
    )
    assert of(lacking)["qualify.scenario", "eight"] == "error"


def test_a_defect_fails_the_scenarios_that_it_hits_and_no_other() -> None:
    found = outcomes(junit(*judged("rejected")))
    scenarios = {name: outcome for (kind, name), outcome in found.items() if kind == "qualify.scenario"}
    assert scenarios == {"alone": "passed", "mixed": "failure"}


def test_where_nothing_was_served_nothing_passes() -> None:
    found = outcomes(junit(*judged("machinery")))
    assert "passed" not in found.values()
    assert found["qualify.scenario", "alone"] == found["qualify.scenario", "mixed"] == "error"
    assert found["qualify.requirement", "the baseline is served to the end"] == "error"
    assert found["qualify.requirement", "the candidate differs no more than the baseline's noise"] == "error"


def test_a_scenario_without_the_controls_answers_is_an_error() -> None:
    killed = with_arm(good(), Arm.CONTROL, ArmState.KILLED, "SIGKILL")
    found = of(without_runs(killed, Arm.CONTROL))
    scenarios = {name: outcome for (kind, name), outcome in found.items() if kind == "qualify.scenario"}
    assert scenarios == {"alone": "error", "mixed": "error"}


@pytest.mark.parametrize(
    ("weight", "outcome"),
    [(Weight.SATISFIED, "passed"), (Weight.DEFECT, "failure"), (Weight.UNTESTED, "error")],
)
def test_each_contract_is_a_case(weight: Weight, outcome: str) -> None:
    record = replace(good(), inspections=(contract("triton", weight),))
    assert of(record)["qualify.contract", "triton"] == outcome


def test_what_a_server_says_does_not_break_the_document() -> None:
    record = with_arm(good(), Arm.CANDIDATE, ArmState.DIED, HOSTILE)
    document = junit(judge(record, POLICY, SHA256), record)
    SCHEMA.assertValid(etree.fromstring(document))
    assert b"<script" not in document
