"""Bundles of real runs on an H200 give the same verdict again, byte for byte, without a GPU."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from qualify.compare.rows import place
from qualify.errors import EvidenceError
from qualify.evidence.bundle import Bundle
from qualify.evidence.digests import canonical_json
from qualify.evidence.recording import read_record
from qualify.findings import Result
from qualify.judging import judge_bundle
from qualify.transcript import Arm, Decode, RunKey

EVIDENCE = Path(__file__).parents[2] / "reports/evidence/h200"
ROWS_AFTER_0 = tuple(range(1, 16))
EXACT = "ds4-h200-20261201T130025172171-5a73842f"
WIDE = "ds4-h200-wide-20261201T130403693761-e2d8c891"
PACKED = "ds4-h200-packed-20261201T130657614810-096feb56"
NEWEST = "ds4-h200-newest-20261201T130658744609-447967f2"
LAST_ROW = "ds4-h200-last-row-20261201T130407303449-76de17b5"
EVERY_8TH = "ds4-h200-every-8th-20261201T130408251992-6683e413"
SHIPPED = "ds4-h200-0271-20261201T130404773440-19c69a1a"
FIXED = "ds4-h200-0271-fixed-20261201T130405610078-f8cb284a"
LIVE = "ds4-h200-live-20261201T104450195584-3643a937"
BUNDLES = {
    EXACT: Result.QUALIFIED,
    WIDE: Result.QUALIFIED,
    PACKED: Result.REJECTED,
    NEWEST: Result.REJECTED,
    LAST_ROW: Result.QUALIFIED,
    EVERY_8TH: Result.QUALIFIED,
    SHIPPED: Result.REJECTED,
    FIXED: Result.QUALIFIED,
    LIVE: Result.QUALIFIED,
}


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


@pytest.mark.parametrize(("name", "positions"), [(EXACT, 1320), (WIDE, 1536), (FIXED, 1320)])
def test_right_graphs_are_bit_identical(unpacked: Path, name: str, positions: int) -> None:
    candidate, control = verdict(unpacked, name)["comparison"]["arms"]
    assert (candidate["spread"]["positions"], candidate["spread"]["differ"]) == (positions, 0)
    assert control["spread"]["differ"] > 800
    assert control["rows_recorded"]
    assert 0 not in control["rows"]


@pytest.mark.parametrize(("name", "steps"), [(EXACT, 390), (WIDE, 94)])
def test_every_decode_step_of_the_candidate_was_a_full_replay(unpacked: Path, name: str, steps: int) -> None:
    cells = {cell["name"]: cell["reached"] for cell in verdict(unpacked, name)["coverage"]}
    assert cells["decode steps of the candidate that were replays"] == f"{steps} of {steps} (100.0%)"
    assert cells["replays in the baseline"].startswith("0 of ")
    assert cells["graph mode that the candidate's server resolved"].startswith("FULL_DECODE_ONLY")
    assert cells["graph mode that the baseline's server resolved"] == "NONE"


@pytest.mark.parametrize("scenario", ["h200-eight", "h200-sixteen"])
def test_the_packed_control_leaves_row_0_alone_and_little_of_the_rest(unpacked: Path, scenario: str) -> None:
    record = read_record(Bundle(unpacked / EXACT))
    baseline, control = (record.runs[RunKey(arm, Decode.FORCED, 1)] for arm in (Arm.BASELINE, Arm.CONTROL))
    placed = place(control, record.steps[Arm.CONTROL])
    right = {head.request_id: head for head in baseline.heads}
    same_top: list[bool] = []
    for head in (head for head in control.heads if head.scenario == scenario):
        mine = slice(head.start, head.start + head.length)
        theirs = slice(right[head.request_id].start, right[head.request_id].start + head.length)
        row = placed.row[mine]
        if row[1] == 0:  # its first decode step
            assert np.array_equal(control.top_logprobs[mine], baseline.top_logprobs[theirs])
        same = control.top_ids[mine, 0] == baseline.top_ids[theirs, 0]
        same_top += same[row > 0].tolist()
    assert len(same_top) > 200
    assert np.mean(same_top) < 0.5


@pytest.mark.parametrize("name", [LAST_ROW, EVERY_8TH])
def test_weaker_controls_are_caught_wherever_they_can_act(unpacked: Path, name: str) -> None:
    caught = [item for item in verdict(unpacked, name)["findings"] if item["rule"] == "control"]
    assert [item["weight"] for item in caught] == ["satisfied"] * 3


@pytest.mark.parametrize("name", [PACKED, SHIPPED])
def test_a_packing_candidate_is_hit_in_every_row_but_row_0(unpacked: Path, name: str) -> None:
    (defect,) = [item for item in verdict(unpacked, name)["findings"] if item["weight"] == "defect"]
    assert set(defect["rows"]) == set(ROWS_AFTER_0)


def test_what_0271_ships_does_what_the_packed_fault_does(unpacked: Path) -> None:
    shipped, packed = (verdict(unpacked, name)["comparison"]["arms"][0] for name in (SHIPPED, PACKED))
    assert shipped == packed


def test_the_fix_looked_at_the_builder_of_0271_and_replaced_it(unpacked: Path) -> None:
    log = (unpacked / FIXED / "arms/candidate/server.log").read_text()
    assert "at the packed stride: replaced by the capacity-stride builder" in log
    assert "C128A metadata builder taken from" in log


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
