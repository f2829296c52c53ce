"""Memory accesses of the kernels themselves, where compute-sanitizer is at hand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ds4_kernels.contracts.subjects import Need, Subject

_FOUND_ERRORS = 86


@pytest.mark.needs(Need.SANITIZER)
def test_memcheck_finds_nothing(subject: Subject) -> None:
    """The contract's numbers under memcheck, without torch's memory cache: it hides stray accesses."""
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", str(_FOUND_ERRORS)]
    command += [sys.executable, "-m", "ds4_kernels.contracts", *subject.request.arguments()]
    command += ["--examples", "3", "--only", "numbers or edges"]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=400)
    assert done.returncode == 0, f"exit {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    assert "ERROR SUMMARY: 0 errors" in done.stdout, done.stdout[-3000:]
