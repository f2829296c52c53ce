"""Writes the table of field cases: ``python -m tests.fieldcases.table docs/field-cases.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from qualify.errors import ExitCode
from tests.fieldcases.cases import CASES, Case
from tests.fieldcases.worlds import WORLDS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/field-cases.md"
_CODES = {
    ExitCode.REJECTED: "rejected",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.QUALIFIED: "qualified",
}
_HEAD = """\
# Field cases

Defects that reached users of LLM servers, each acted out by the fake server of the tests in a scenario of its
family, made small: `tests/fake_server/fieldcases.py` says when a case strikes and what it does, and where a
number is smaller than in the field. `tests/fieldcases/test_field_cases.py` runs every row and asserts the
verdict and the rule that fires, and that a right server in the same scenario is qualified.

This file is written from the same records by `make field-cases`.

"""


def counted() -> tuple[int, int, int]:
    """Cases that are caught, those that are no defect and rightly raise nothing, and all."""
    silent = sum(case.code == ExitCode.QUALIFIED for case in CASES)
    return sum(not case.gap for case in CASES) - silent, silent, len(CASES)


def text() -> str:
    """The document."""
    caught, silent, cases = counted()
    rows = "".join(_row(case) for case in CASES)
    heading = ("case", "what its users saw", "scenario", "verdict", "rule", "what shows it")
    columns = f"| {' | '.join(heading)} |\n|{'---|' * len(heading)}\n"
    summary = f"{caught} of {cases} cases are caught; {silent} more are no defect and raise nothing."
    return f"{_HEAD}{summary}\n\n{columns}{rows}"


def _row(case: Case) -> str:
    if case.gap:
        cells = ["", "not covered", "", case.gap]
    elif case.elsewhere:
        cells = ["", "rejected", "", f"{case.how} (`{case.elsewhere}`)"]
    else:
        scenario = f"[{WORLDS[case.world].family}](../scenarios/{WORLDS[case.world].family}.yaml)"
        rule = f"`{case.rule}`" if case.rule else "none"
        cells = [scenario, _CODES[case.code], rule, case.how]
    return f"| {' | '.join([case.id, case.saw, *cells])} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
