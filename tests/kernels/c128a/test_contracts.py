"""The suite itself: it passes what is right, names what is wrong, and never passes what it could not run."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from ds4_kernels.contracts.released import ROWS, Expected, Outcome, table

from .suite import ROOT, run_suite


def test_the_reference_passes_and_says_what_was_not_run(tmp_path):
    junit = tmp_path / "junit.xml"
    run = run_suite(tmp_path, "--subject", "reference", "--examples", "10", "--junit", str(junit))
    assert run.code == 0, run.output
    assert not run.failed
    assert len(run.passed) > 100
    assert set(run.summary) >= {"subject", "version", "device", "passed", "failed", "not_run"}
    assert all(entry["reason"] for entry in run.summary["not_run"])
    suite = ElementTree.parse(junit).getroot()[0]
    assert int(suite.get("tests")) == len(run.passed)
    assert suite.get("failures") == suite.get("errors") == suite.get("skipped") == "0"


def test_triton_passes_in_the_interpreter_within_the_time(tmp_path):
    run = run_suite(tmp_path, "--subject", "triton")
    assert run.code == 0, run.output
    assert run.cpu_seconds < 90  # not the clock's: other work on the machine must not fail this
    assert "interpreter" in run.summary["software"]["triton"]


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (("--subject", "cuda"), "cuda: no GPU here"),
        (("--subject", "nothing"), "nothing: unknown subject"),
        (("--subject", "no_such_module:build"), "no_such_module: cannot be imported"),
        (("--subject", "json:nothing"), "json has no function nothing"),
        (("--subject", "vllm", "--vllm-root", "/nowhere"), "/nowhere: holds no vllm package"),
        (("--subject", "triton", "--stride-fix", "auto"), "belong to subject vllm"),
        (("--subject", "json:dumps"), "cannot be run here"),
    ],
)
def test_a_subject_that_cannot_be_run_is_an_error(tmp_path, subject, message):
    run = run_suite(tmp_path, *subject)
    assert run.code == 4
    assert message in run.output
    assert "Traceback" not in run.output
    assert not run.summary


def test_no_check_selected_is_no_pass(tmp_path):
    run = run_suite(tmp_path, "--subject", "reference", "--only", "nothing_of_this_name")
    assert run.code == 4
    assert "no check was run" in run.output


def test_a_foreign_builder_is_taken_by_module_and_function(tmp_path):
    (tmp_path / "foreign.py").write_text(
        "__version__ = '7'\nfrom ds4_kernels.c128a.reference import build\n", encoding="utf-8"
    )
    arguments = ("--subject", "foreign:build", "--only", "numbers")
    run = run_suite(tmp_path, *arguments, python_path=tmp_path)
    assert (run.code, run.summary["version"], run.summary["subject"]) == (0, "7", "foreign:build")


def test_the_table_names_the_packed_releases_alone():
    packed = [row.version for row in ROWS if row.expected is Expected.FAILS_ON_STRIDE]
    assert packed == ["0.27.0", "0.27.1"]


def test_the_table_says_when_a_release_is_not_as_expected():
    outcome = Outcome("9.9.9", "passes", False, 1, 2, 3, "decode view: row stride 128", 1.0, "0" * 64)
    assert table([outcome]).splitlines()[1].endswith("NO")
    assert "row stride 128" in table([outcome])


def test_the_kept_evidence_of_the_released_wheels_is_as_expected():
    rows = json.loads((ROOT / "reports/evidence/contracts/released-cpu.json").read_text())
    assert [row["release"].split(" ")[0] for row in rows] == [row.version for row in ROWS]
    assert all(row["as_expected"] for row in rows)
    assert [bool(row["stride"]) for row in rows] == [row.expected is Expected.FAILS_ON_STRIDE for row in ROWS]
