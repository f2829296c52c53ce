"""Evidence of a real run on an H200 that was cut, swapped or taken from elsewhere gives no pass."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from qualify.evidence.bundle import MANIFEST, Bundle
from qualify.findings import Result
from qualify.judging import judge_bundle

ARCHIVE = Path(__file__).parents[2] / "reports/evidence/h200/exact.tar.xz"
EXACT = "ds4-h200-20261201T130025172171-5a73842f"
WIDE = "ds4-h200-wide-20261201T130403693761-e2d8c891"
CANDIDATE, BASELINE = "arms/candidate", "arms/baseline"
IN_LOG = "Coverage: judged tokens of the candidate whose step was recorded"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    with tarfile.open(ARCHIVE) as archive:
        wanted = [entry for entry in archive if entry.name.startswith((EXACT, WIDE))]
        archive.extractall(directory, wanted, filter="data")
    return directory


@pytest.fixture
def bundle(recorded: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(recorded / EXACT, tmp_path / EXACT)
    shutil.copy(recorded / WIDE / CANDIDATE / "steps.jsonl", tmp_path / "wide.jsonl")
    (copy / MANIFEST).unlink()
    return copy


def cut_at_a_quarter(bundle: Path) -> None:
    log = bundle / CANDIDATE / "steps.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 4])
    assert not log.read_bytes().endswith(b"\n")


def keep(bundle: Path, wanted: Callable[[dict], bool]) -> None:
    log = bundle / CANDIDATE / "steps.jsonl"
    steps = [step for step in map(json.loads, log.read_text().splitlines()) if wanted(step)]
    log.write_text("".join(json.dumps(step | {"step": number}) + "\n" for number, step in enumerate(steps)))


def free_run_only(bundle: Path) -> None:
    keep(bundle, lambda step: all(".free." in row["request_id"] for row in step["rows"]))


def without_two_scenarios(bundle: Path) -> None:
    gone = ("forced.run1-h200-sixteen", "forced.run1-h200-eight")
    keep(bundle, lambda step: not any(name in row["request_id"] for row in step["rows"] for name in gone))


def of_the_control(bundle: Path) -> None:
    shutil.copy(bundle / "arms/control/steps.jsonl", bundle / CANDIDATE)


def of_another_bundle(bundle: Path) -> None:
    (bundle / CANDIDATE / "steps.jsonl").write_text((bundle.parent / "wide.jsonl").read_text())


def other_label(bundle: Path) -> None:
    log = bundle / CANDIDATE / "steps.jsonl"
    log.write_text(log.read_text().replace("FULL CUDA graph replay", "emulated replay"))


def log_of_the_baseline(bundle: Path) -> None:
    shutil.copy(bundle / BASELINE / "server.log", bundle / CANDIDATE)


def one_step_of_the_baseline(bundle: Path) -> None:
    log = bundle / BASELINE / "steps.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])


def answers_of_the_baseline(bundle: Path) -> None:
    text = (bundle / BASELINE / "forced.run1.jsonl").read_text()
    text = text.replace('"run":{"arm":"baseline"', '"run":{"arm":"candidate"')
    (bundle / CANDIDATE / "forced.run1.jsonl").write_text(text)


def no_probes(bundle: Path) -> None:
    for name in ("server.log", "configuration.json", "metrics.jsonl", "gpu-errors.log", "gpu.csv"):
        (bundle / CANDIDATE / name).unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cut_at_a_quarter, f"{IN_LOG}: 0 of 1287"),
        (free_run_only, f"{IN_LOG}: 0 of 1287"),
        (without_two_scenarios, f"{IN_LOG}: 351 of 1287, not all in h200-eight, h200-sixteen;"),
        (of_the_control, f"{IN_LOG}: 0 of 1287"),
        (of_another_bundle, f"{IN_LOG}: 0 of 1287"),
        (
            other_label,
            "Coverage: decode steps of the candidate that were replays: 0 of 390 (0.0%), 390 replayed "
            "otherwise than by FULL CUDA graph replay",
        ),
        (
            log_of_the_baseline,
            "Coverage: steps of the candidate as its server counted them: at least 701 NONE",
        ),
        (
            one_step_of_the_baseline,
            "Coverage: judged tokens of the baseline whose step was recorded: 0 of 2574",
        ),
        (answers_of_the_baseline, "33 answers of run candidate.forced.run1 have the ids"),
        (
            no_probes,
            "Coverage: log and metrics and configuration and kernel log of candidate: not measured",
        ),
    ],
)
def test_it_is_inconclusive_and_says_why(bundle: Path, change: Callable[[Path], None], said: str) -> None:
    assert judge_bundle(Bundle(bundle)).result is Result.QUALIFIED
    change(bundle)
    verdict = judge_bundle(Bundle(bundle))
    assert verdict.result is Result.INCONCLUSIVE
    assert any(reason.startswith(said) for reason in verdict.reasons), verdict.reasons
    told = [finding for finding in verdict.findings if finding.summary.startswith(said)]
    if said.startswith(IN_LOG) or change is no_probes:
        assert told[0].advice.endswith("erve again.")
    if change is cut_at_a_quarter:
        assert any("ends within a line" in finding.summary for finding in verdict.findings)
