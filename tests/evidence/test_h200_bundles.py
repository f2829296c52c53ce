"""Bundles of real runs on an H200 give the same verdict again, byte for byte, without a GPU."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from qualify.errors import EvidenceError
from qualify.evidence.bundle import Bundle
from qualify.evidence.digests import canonical_json
from qualify.findings import Result
from qualify.judging import judge_bundle

EVIDENCE = Path(__file__).parents[2] / "reports/evidence/h200"
ROWS_AFTER_0 = tuple(range(1, 16))
BUNDLES = {
    "ds4-h200-20261201T103315690298-57befde0": Result.QUALIFIED,
    "ds4-h200-packed-20261201T103826517967-d4977250": Result.REJECTED,
    "ds4-h200-last-row-20261201T103826378636-22e3ea41": Result.REJECTED,
    "ds4-h200-every-8th-20261201T103826611552-6e976654": Result.REJECTED,
    "ds4-h200-newest-20261201T103826616842-c83de892": Result.REJECTED,
    "ds4-h200-live-20261201T104450195584-3643a937": Result.QUALIFIED,
}
EXACT, PACKED, *_, NEWEST, LIVE = BUNDLES


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("h200")
    for name in ("exact", "live"):
        with tarfile.open(EVIDENCE / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
    return directory


def verdict(directory: Path, name: str) -> dict:
    return json.loads((directory / name / "verdict.json").read_bytes())


def test_all_bundles_are_judged_here(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir()} == set(BUNDLES)


@pytest.mark.parametrize("name", BUNDLES)
def test_the_verdict_is_the_same_again(unpacked: Path, name: str) -> None:
    judged = judge_bundle(Bundle(unpacked / name))
    assert judged.result is BUNDLES[name]
    assert canonical_json(judged) == (unpacked / name / "verdict.json").read_bytes()


def test_right_graphs_are_bit_identical_and_every_decode_step_was_replayed(unpacked: Path) -> None:
    told = verdict(unpacked, EXACT)
    candidate, control = told["comparison"]["arms"]
    assert (candidate["spread"]["positions"], candidate["spread"]["differ"]) == (1320, 0)
    assert control["spread"]["same_top"] < 0.5
    assert control["rows_recorded"]
    assert set(control["rows"]) == set(ROWS_AFTER_0)
    cells = {cell["name"]: cell["reached"] for cell in told["coverage"]}
    assert cells["decode steps of the candidate that were replays"] == "390 of 390 (100.0%)"
    assert cells["replays in the baseline"] == "0 of 714 steps"


def test_the_packed_candidate_is_hit_in_every_row_but_row_0(unpacked: Path) -> None:
    (defect,) = [item for item in verdict(unpacked, PACKED)["findings"] if item["weight"] == "defect"]
    assert set(defect["rows"]) == set(ROWS_AFTER_0)


def test_the_gentlest_fault_is_found_in_every_row(unpacked: Path) -> None:
    (defect,) = [item for item in verdict(unpacked, NEWEST)["findings"] if item["weight"] == "defect"]
    assert set(defect["rows"]) == {0, *ROWS_AFTER_0}


def test_a_noisy_floor_still_catches_the_control(unpacked: Path) -> None:
    told = verdict(unpacked, LIVE)
    assert not told["comparison"]["exact"]
    assert told["comparison"]["floor"]["differ"] > 1000
    caught = [item for item in told["findings"] if item["rule"] == "control"]
    assert [item["weight"] for item in caught] == ["satisfied"] * 3


def test_a_changed_answer_is_noticed(unpacked: Path) -> None:
    path = unpacked / LIVE / "arms/candidate/forced.run1.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"token_ids":[', b'"token_ids": [', 1))
    try:
        with pytest.raises(EvidenceError, match="changed after the bundle was sealed"):
            judge_bundle(Bundle(unpacked / LIVE))
    finally:
        path.write_bytes(before)
