"""Every field case is caught by the rule that the table names; a right server in the same world by none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qualify.errors import ExitCode
from tests.fieldcases.acting import Stage
from tests.fieldcases.cases import CASES, Case
from tests.fieldcases.table import FILE, ROOT, counted, text
from tests.fieldcases.worlds import WORLDS

ACTED = [case for case in CASES if case.world]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("worlds"))
    yield stage
    stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_right_server_is_not_blamed(stage: Stage, world: str) -> None:
    act = stage.act(world)
    assert act.outcome.code == ExitCode.QUALIFIED, act.outcome.out + act.outcome.err
    assert act.findings("defect") == act.findings("untested") == []


@pytest.mark.slow
@pytest.mark.parametrize("case", ACTED, ids=lambda case: case.id)
def test_case_is_caught_by_its_rule(stage: Stage, case: Case) -> None:
    act = stage.act(case.world, case.id)
    assert act.outcome.code == case.code, act.outcome.out + act.outcome.err
    if case.code == ExitCode.QUALIFIED:
        assert act.findings("defect") == []
        assert "which would be wrong" not in act.log
        return
    weight = "defect" if case.code == ExitCode.REJECTED else "untested"
    told = [finding for finding in act.findings(weight) if finding["rule"] == case.rule]
    assert told, [(finding["rule"], finding["summary"]) for finding in act.verdict["findings"]]
    assert case.said in str(told)


def test_every_case_of_the_catalogue_is_there_once() -> None:
    assert len(CASES) == len({case.id for case in CASES}) == 40


def test_cases_are_caught_or_say_why_not() -> None:
    for case in CASES:
        ways = [bool(case.world), bool(case.elsewhere), bool(case.gap)]
        assert sum(ways) == 1, case.id
        assert bool(case.how) != bool(case.gap), case.id
        if case.elsewhere:
            path, name = case.elsewhere.split("::")
            assert f"def {name}(" in (ROOT / path).read_text(), case.id
    assert counted()[0] >= 35


def test_table_is_fresh() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "make field-cases"
