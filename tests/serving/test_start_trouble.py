"""What GPU servers die of while they start: whose fault it is, and what is missing, by real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qualify.record import ArmState
from qualify.serving.arms import ServerCommand
from qualify.serving.launcher import Server
from qualify.serving.process import ProcessLauncher
from qualify.serving.session import Session, serve_async
from qualify.transcript import Arm
from tests.fake_server.starting import NAME, fake_launcher

_SAYS = "import sys; print('INFO: loading', flush=True); raise RuntimeError(sys.argv[1])"
SESSION = Session(arm=Arm.CANDIDATE, fault=None, served_name=NAME, ready_within_s=20)


def dying(directory: Path, words: str) -> ProcessLauncher:
    command = ServerCommand(argv=(sys.executable, "-c", _SAYS, words), environment=(), cwd=directory)
    return ProcessLauncher(lambda _: command, log=directory / "server.log", stop_within_s=5)


async def unused(_: Server) -> None:
    raise AssertionError("it was never ready")


@pytest.mark.parametrize(
    ("words", "state", "said"),
    [
        # not its own doing: nothing of this machine's GPU can be said of the release
        ("No CUDA GPUs are available", ArmState.MACHINERY, "there is no usable GPU"),
        ("CUDA error: no CUDA-capable device is detected", ArmState.MACHINERY, "there is no usable GPU"),
        ("Found no NVIDIA driver on your system.", ArmState.MACHINERY, "there is no usable GPU"),
        (
            "The NVIDIA driver on your system is too old (found version 12020).",
            ArmState.MACHINERY,
            "driver is too old",
        ),
        (
            "Free memory on device cuda:0 (9.1/139.8 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 125.8 GiB).",
            ArmState.MACHINERY,
            "another program uses the GPU's memory",
        ),
        ("CUDA error: uncorrectable ECC error encountered", ArmState.MACHINERY, "the GPU is broken"),
        # its own: a finding where the baseline starts on the same machine
        (
            "CUDA error: no kernel image is available for execution on the device",
            ArmState.START_FAILED,
            "other GPUs",
        ),
        ("nvcc fatal: Unsupported gpu architecture 'compute_120a'", ArmState.START_FAILED, "other GPUs"),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB.",
            ArmState.START_FAILED,
            "more of the GPU's memory",
        ),
        ("No available memory for the cache blocks.", ArmState.START_FAILED, "more of the GPU's memory"),
        (
            "CUDA error: operation not permitted when stream is capturing",
            ArmState.START_FAILED,
            "a CUDA graph could not be captured",
        ),
        (
            "CUDA error: an illegal memory access was encountered",
            ArmState.START_FAILED,
            "illegal memory access",
        ),
        (
            "Failed to find C compiler. Please specify via CC environment variable",
            ArmState.START_FAILED,
            "compiler",
        ),
        (
            "[Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
            ArmState.START_FAILED,
            "compiler",
        ),
        ("/bin/sh: 1: nvcc: not found", ArmState.START_FAILED, "compiler"),
        ("CUDA_HOME environment variable is not set.", ArmState.START_FAILED, "compiler"),
    ],
)
async def test_end_while_starting(tmp_path: Path, words: str, state: ArmState, said: str) -> None:
    record = await serve_async(SESSION, dying(tmp_path, words), unused, progress=lambda _: None)
    assert record.state is state, record.detail
    assert said in record.detail
    assert words in "\n".join(record.log_tail)


async def test_compiler_that_was_only_missed_in_passing_is_not_blamed(tmp_path: Path) -> None:
    words = "WARNING: nvcc not found, using the slow path\nValueError: no kernel for this shape"
    record = await serve_async(SESSION, dying(tmp_path, words), unused, progress=lambda _: None)
    assert record.state is ArmState.START_FAILED
    assert "compiler" not in record.detail


async def test_hang_during_capture_says_what_it_was_doing(tmp_path: Path) -> None:
    session = Session(arm=Arm.CANDIDATE, fault=None, served_name=NAME, ready_within_s=1)
    launcher = fake_launcher(tmp_path, FAKE_LOAD_S="60")
    record = await serve_async(session, launcher, unused, progress=lambda _: None)
    assert record.state is ArmState.NEVER_READY
    assert record.detail.startswith("not ready after 1 s: /health does not answer (ConnectError)")
    assert "its last line: loading" in record.detail
