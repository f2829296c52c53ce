"""Peak memory of a process."""

import os
import subprocess
import sys

from qualify.bench.memory import peak_bytes


def _peak_after(script: str) -> int | None:
    """Peak of a Python that has run the script and still lives."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{script}; print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        peak = peak_bytes(process.pid)
        process.communicate(b"\n")
    return peak


def test_peak_is_that_of_the_program_and_not_of_who_started_it() -> None:
    large = bytearray(b"\1" * (300 << 20))
    own, child = peak_bytes(), _peak_after("pass")
    assert own is not None
    assert own > len(large)
    assert child is not None
    assert 1 << 20 < child < 100 << 20


def test_peak_stays_when_memory_is_given_back() -> None:
    peak = _peak_after("held = bytearray(b'1' * (100 << 20)); del held")
    assert peak is not None
    assert peak > 100 << 20


def test_ended_process_has_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert peak_bytes(process.pid) is None  # not yet reaped
    process.wait()
    assert peak_bytes(process.pid) is None
