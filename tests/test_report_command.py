"""`qualify report` makes all reports again and leaves the bundle as it is; a report never costs a verdict."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from rich.console import Console

from qualify.errors import ExitCode
from qualify.evidence.bundle import Bundle, verify
from qualify.pipeline import Options, run_release
from qualify.rendering import read_material, write_reports
from qualify.reporting.progress import Progress
from qualify.reporting.writers import WRITERS
from tests.projects import ENVIRONMENT, Outcome
from tests.reporting.html.material import Page


def report(*words: object) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "qualify", "report", *map(str, words)],
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def bundle(served, tmp_path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "bundles" / served.name))


def reports_of(bundle: Path) -> Path:
    return bundle.with_name(f"{bundle.name}.reports")


def files_behind(page: Path) -> list[Path]:
    links = Page(page.read_bytes()).links()
    return [page.parent / unquote(link) for link in links if not link.startswith("#")]


def test_a_run_leaves_its_page_in_the_sealed_bundle(served):
    verify(Bundle(served))
    behind = files_behind(served / "report.html")
    assert {"verdict.json", "plan.json", "server.log", "forced.run1.jsonl.gz"} <= {
        path.name for path in behind
    }
    assert [path for path in behind if not path.is_file()] == []


def test_all_reports_are_the_same_again_but_for_where_the_bundle_lies(bundle):
    outcome = report(bundle)
    assert (outcome.code, "qualified" in outcome.out) == (ExitCode.QUALIFIED, True), outcome.err
    made = reports_of(bundle)
    assert {path.name for path in made.iterdir()} == set(WRITERS)
    there = f'href="../{bundle.name}/'.encode()
    for name in WRITERS:
        again = (made / name).read_bytes().replace(there, b'href="./')
        assert again == (bundle / name).read_bytes(), name
    assert all(path.is_file() for path in files_behind(made / "report.html"))
    verify(Bundle(bundle))


def test_several_bundles_exit_as_the_worst(bundle, served_rejected, tmp_path):
    outcome = report(bundle, served_rejected, "--into", tmp_path / "out")
    assert outcome.code == ExitCode.REJECTED, outcome.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [bundle.name, served_rejected.name]
    )


def test_a_damaged_bundle_has_no_report(bundle):
    log = bundle / "arms/candidate/server.log"
    log.write_text(log.read_text() + "one line more\n")
    outcome = report(bundle)
    assert outcome.code == ExitCode.INCONCLUSIVE
    assert "changed after the bundle was sealed" in outcome.err
    assert not reports_of(bundle).exists()


def test_reports_do_not_go_into_the_sealed_bundle(bundle):
    outcome = report(bundle, "--into", bundle / "arms")
    assert outcome.code == ExitCode.USAGE
    verify(Bundle(bundle))


def test_a_run_that_was_cut_short_has_its_page(bundle):
    (bundle / "manifest.json").unlink()
    shutil.rmtree(bundle / "arms/control")
    outcome = report(bundle)
    assert outcome.code == ExitCode.INCONCLUSIVE, outcome.err
    assert b'class="verdict inconclusive"' in (reports_of(bundle) / "report.html").read_bytes()


def test_an_unsealed_bundle_has_no_page_that_says_qualified(bundle):
    (bundle / "manifest.json").unlink()
    outcome = report(bundle)
    assert outcome.code == ExitCode.INCONCLUSIVE
    assert "was never sealed, so nothing says that it is whole" in outcome.err
    assert not reports_of(bundle).exists()


def broken(material):
    raise ZeroDivisionError("no room")


def test_a_report_that_cannot_be_written_is_told_and_the_others_are_there(bundle, tmp_path):
    said = []
    material = read_material(Bundle(bundle))
    missing = write_reports(
        material, Bundle(tmp_path), said.append, {"report.html": broken, **without_page()}
    )
    assert missing == ("report.html",)
    assert "REPORT MISSING: report.html could not be written: ZeroDivisionError: no room" in said
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == set(WRITERS) - {"report.html"}


def without_page() -> dict:
    return {name: writer for name, writer in WRITERS.items() if name != "report.html"}


@pytest.mark.slow
def test_a_report_that_cannot_be_written_changes_neither_verdict_nor_seal(project, monkeypatch):
    monkeypatch.setitem(WRITERS, "report.html", broken)
    options = Options(
        release=project.release, bundles=project.root / "bundles", models=project.root / "models"
    )
    told, out = io.StringIO(), io.StringIO()
    code = run_release(options, Progress(told), Console(file=out))
    assert code == ExitCode.QUALIFIED
    assert "REPORT MISSING: report.html" in told.getvalue()
    assert "reports that could not be written: report.html" in out.getvalue()
    verify(Bundle(project.bundle()))
    assert not (project.bundle() / "report.html").exists()
    assert project.read("verdict.json")["result"] == "qualified"
