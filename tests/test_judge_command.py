"""`qualify judge` on transcripts made elsewhere: recorded runs on an H200, right and wrong."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from qualify.cli.main import spread
from qualify.errors import ExitCode
from tests.projects import ENVIRONMENT, ROOT

EVIDENCE = ROOT / "reports/evidence/h200-transcripts/h200-forced-c4-muted.tar.xz"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    with tarfile.open(EVIDENCE) as archive:
        archive.extractall(directory, filter="data")
    return directory


def files(directory: Path, pattern: str) -> list[str]:
    found = sorted(str(path) for path in directory.rglob(f"*.{pattern}.json*"))
    assert found
    return found


def judge(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "qualify", "judge", *words],
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("candidate", "control", "code"),
    [
        ("full-graph.capacity.forced.run1", "full-graph.packed.forced.run1", ExitCode.QUALIFIED),
        ("full-graph.capacity.forced.run1", None, ExitCode.INCONCLUSIVE),
        ("full-graph.packed.forced.run1", None, ExitCode.REJECTED),
        ("full-graph.newest-entry-missing.forced.run1", None, ExitCode.REJECTED),
    ],
)
def test_recorded_runs(recorded, candidate, control, code):
    words = ["--baseline", *files(recorded, "eager.capacity.forced.run[12]")]
    words += ["--candidate", *files(recorded, candidate), "--date", "2026-01-02"]
    words += ["--control", *files(recorded, control)] if control else []
    got, out, err = judge(*words)
    assert got == code, err
    assert json.loads(out)["run_date"] == "2026-01-02"
    assert judge(*words)[1] == out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a bundle, or at least"),
        (["--baseline", str(EVIDENCE)], "give a bundle, or at least"),
        (["--baseline", "nothing.json", "--candidate", "nothing.json"], "does not exist"),
        (["--baseline", str(EVIDENCE), "--candidate", str(EVIDENCE), "--date", "soon"], "give YYYY-MM-DD"),
        ([str(ROOT), "--baseline", str(EVIDENCE)], "give a bundle, or at least"),
    ],
)
def test_wrong_usage(words, said):
    code, out, err = judge(*words)
    assert code == ExitCode.USAGE
    assert said in err
    assert "Traceback" not in err
    assert out == ""


def test_file_options_take_any_number_of_files():
    words = ["judge", "--baseline", "a", "b", "--date", "d", "--candidate", "c", "-x", "e"]
    assert spread(words) == [
        *("judge", "--baseline", "a", "--baseline", "b", "--date", "d", "--candidate", "c", "-x", "e"),
    ]
