from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from qualify.serving.telemetry import GPU_ERRORS, GPU_SAMPLES, watched_gpus

SMI = """#!/bin/sh
echo "timestamp, index, memory.used [MiB]"
while true; do echo "now, 0, 1234"; sleep 0.05; done
"""


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return directory


def test_samples_are_kept_and_sampling_ends(tmp_path: Path, programs: Path) -> None:
    program(programs, "nvidia-smi", SMI)
    program(programs, "dmesg", "#!/bin/sh\nexit 1\n")
    with watched_gpus(tmp_path):
        time.sleep(0.4)
    size = (tmp_path / GPU_SAMPLES).stat().st_size
    assert "now, 0, 1234" in (tmp_path / GPU_SAMPLES).read_text()
    time.sleep(0.3)
    assert (tmp_path / GPU_SAMPLES).stat().st_size == size
    assert not (tmp_path / GPU_ERRORS).exists()  # the kernel log could not be read: not measured


def test_new_errors_of_the_card_are_kept(tmp_path: Path, programs: Path) -> None:
    program(programs, "nvidia-smi", SMI)
    log = tmp_path / "kernel"
    log.write_text("[1] NVRM: Xid (PCI:0): 13, old\n")
    program(programs, "dmesg", f"#!/bin/sh\ncat {log}\n")
    with watched_gpus(tmp_path):
        log.write_text(log.read_text() + "[2] usb: unrelated\n[3] NVRM: Xid (PCI:0): 31, new\n")
    assert (tmp_path / GPU_ERRORS).read_text() == "[3] NVRM: Xid (PCI:0): 31, new\n"


def test_none_is_said_by_an_empty_file(tmp_path: Path, programs: Path) -> None:
    program(programs, "nvidia-smi", SMI)
    program(programs, "dmesg", "#!/bin/sh\necho booted\n")
    with watched_gpus(tmp_path):
        pass
    assert (tmp_path / GPU_ERRORS).read_text() == ""


def test_without_a_card_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with watched_gpus(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_sampling_ends_where_serving_fails(tmp_path: Path, programs: Path) -> None:
    program(programs, "nvidia-smi", SMI)
    with pytest.raises(RuntimeError, match="died"), watched_gpus(tmp_path):
        raise RuntimeError("died")
    size = (tmp_path / GPU_SAMPLES).stat().st_size
    time.sleep(0.2)
    assert (tmp_path / GPU_SAMPLES).stat().st_size == size
