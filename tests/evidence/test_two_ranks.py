"""The bundle of a real run with tensor parallel 2 on a CPU gives the same verdict again, byte for byte."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from qualify.evidence.bundle import Bundle
from qualify.evidence.digests import canonical_json
from qualify.evidence.recording import read_record
from qualify.findings import Result
from qualify.jsonlines import open_lines
from qualify.judging import judge_bundle
from qualify.serving import steps

ARCHIVE = Path(__file__).parents[2] / "reports/evidence/two-ranks/ds4-cpu-tp2.tar.xz"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    directory = tmp_path_factory.mktemp("two-ranks")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    (root,) = directory.iterdir()
    return Bundle(root)


def test_the_verdict_is_the_same_again(bundle: Bundle) -> None:
    judged = judge_bundle(bundle)
    assert judged.result is Result.QUALIFIED
    assert canonical_json(judged) == (bundle.root / "verdict.json").read_bytes()


def test_both_ranks_replayed_and_the_faulty_one_is_named(bundle: Bundle) -> None:
    told = json.loads((bundle.root / "verdict.json").read_bytes())
    cells = {cell["name"]: cell["reached"] for cell in told["coverage"]}
    for suffix in ("", ", rank 1"):
        assert cells[f"decode steps of the candidate that were replays{suffix}"] == "76 of 76 (100.0%)"
        assert cells[f"replays in the baseline{suffix}"] == "0 of 129 steps"
    (seen,) = [found for found in told["findings"] if found["rule"] == "metadata"]
    assert (seen["arm"], seen["weight"], seen["rows"]) == ("control", "note", [1, 2, 3, 4, 5, 6, 7])
    assert seen["summary"].startswith("Rank 1 of the control")


def test_every_step_log_is_read_once(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def counted(path: Path) -> AbstractContextManager[Iterator[bytes]]:
        opened.append(path)
        return open_lines(path)

    monkeypatch.setattr(steps, "open_lines", counted)
    record = read_record(bundle)
    assert sorted(opened) == sorted(bundle.root.glob("arms/*/steps*"))
    for arm, table in record.steps.items():
        assert {entry.steps for entry in record.ranks[arm]} == {len(table.rows)}


def test_a_missing_rank_makes_it_inconclusive(bundle: Bundle, tmp_path: Path) -> None:
    copy = Bundle(shutil.copytree(bundle.root, tmp_path / "copy"))
    (copy.root / "manifest.json").unlink()
    (copy.root / "arms/candidate/steps.rank1.jsonl").unlink()
    assert judge_bundle(copy).result is Result.INCONCLUSIVE


@pytest.mark.parametrize(
    ("log", "kept", "said"),
    [
        ("steps.jsonl", 0, "rank 0: not measured; required all."),
        ("steps.rank1.jsonl", 5, "rank 1: 3 of 76; required all."),
    ],
)
def test_metadata_that_was_to_be_looked_at_and_was_not_makes_it_inconclusive(
    bundle: Bundle, tmp_path: Path, log: str, kept: int, said: str
) -> None:
    copy = Bundle(shutil.copytree(bundle.root, tmp_path / "copy"))
    (copy.root / "manifest.json").unlink()
    path = copy.root / "arms/candidate" / log
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    for step in steps[kept:]:
        step.pop("metadata", None)
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    verdict = judge_bundle(copy)
    assert verdict.result is Result.INCONCLUSIVE
    assert any(
        reason.startswith("Coverage: decode steps of the candidate whose C128A rows were looked at")
        and reason.endswith(said)
        for reason in verdict.reasons
    )
