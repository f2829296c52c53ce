"""Memory for servers side by side is looked at before they start, where it can be known."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from qualify.errors import MachineryError
from qualify.inputs import read_inputs
from qualify.release import Release
from qualify.serving.room import check_room, gpu_shares
from qualify.transcript import Arm
from tests.projects import ROOT

ARMS = tuple(Arm)


@pytest.fixture
def h200() -> Release:
    return read_inputs(ROOT / "images/ds4-h200").release


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` whose answer a test writes."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncat "{tmp_path}/answer"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "answer"


def test_shares_of_all_arms_add_up(h200: Release) -> None:
    assert gpu_shares(h200, ARMS) == pytest.approx(0.45)
    assert gpu_shares(h200, ARMS[:2]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ("143000, 143771\n", True),
        ("60000, 143771\n", False),
        ("60000, 143771\n143000, 143771\n", True),  # the other card has room
        ("[N/A], [N/A]\n", True),  # not known
        ("", True),
    ],
)
def test_free_memory_of_the_cards(h200: Release, smi: Path, tmp_path: Path, answer: str, fits: bool) -> None:
    smi.write_text(answer)
    if fits:
        check_room(h200, ARMS, tmp_path)
        return
    with pytest.raises(MachineryError, match=r"ask for 45% of a graphics card's memory, 4\.6 GiB more than"):
        check_room(h200, ARMS, tmp_path)


def test_machine_without_the_program_is_not_refused(
    h200: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check_room(h200, ARMS, tmp_path)


def test_limits_of_containers_are_added_up(tmp_path: Path) -> None:
    release = read_inputs(ROOT / "images/ds4-cpu-image").release
    limits = release.serving.container.model_copy(update={"memory_gib": 8000.0})
    serving = release.serving.model_copy(update={"container": limits})
    with pytest.raises(MachineryError, match=r"2 servers side by side ask for 16000\.0 GiB"):
        check_room(release.model_copy(update={"serving": serving}), ARMS[:2], tmp_path)
