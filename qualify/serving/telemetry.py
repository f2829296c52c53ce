"""What the graphics cards and the kernel log say while an arm is served: a probe beside the transcripts.

Several servers on one card share its figures. Where there is no `nvidia-smi`, or the kernel log cannot be
read, nothing is written: a missing file means not measured.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GPU_SAMPLES = "gpu.csv"
GPU_ERRORS = "gpu-errors.log"
_EVERY_MS = 2000
_FIELDS = "timestamp,index,memory.used,utilization.gpu,clocks.sm,clocks.mem,temperature.gpu,power.draw,name"
_ERROR = "NVRM: Xid"
_ANSWER_WITHIN_S = 10


@contextmanager
def watched_gpus(directory: Path) -> Iterator[None]:
    """Samples all graphics cards every two seconds, and keeps the kernel's new Xid lines.

    Args:
        directory: The arm's directory in the bundle; gets ``gpu.csv`` and ``gpu-errors.log``. An empty
            ``gpu-errors.log`` says that the kernel log was read and had none.

    Yields:
        Nothing; sampling ends with the block.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        yield
        return
    before = _error_lines()
    query = [program, f"--query-gpu={_FIELDS}", "--format=csv,nounits", f"--loop-ms={_EVERY_MS}"]
    with (directory / GPU_SAMPLES).open("wb") as samples:
        sampler = subprocess.Popen(
            query, stdin=subprocess.DEVNULL, stdout=samples, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield
        finally:
            sampler.kill()
            sampler.wait()
    after = _error_lines()
    if before is not None and after is not None:
        known = set(before)
        new = [line for line in after if line not in known]
        (directory / GPU_ERRORS).write_text("".join(f"{line}\n" for line in new), encoding="utf-8")


def _error_lines() -> list[str] | None:
    """The kernel log's lines about errors of graphics cards; None where it cannot be read."""
    try:
        output = subprocess.run(
            ["dmesg"], check=True, capture_output=True, text=True, errors="replace", timeout=_ANSWER_WITHIN_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [line for line in output.splitlines() if _ERROR in line]
