"""Reads what the probes of one arm left in its bundle."""

from __future__ import annotations

from pathlib import Path

from qualify.probe import ProbeRecord
from qualify.serving.logfile import log_lines
from qualify.serving.probes.logsigns import read_signs
from qualify.serving.probes.sampler import METRICS, read_samples
from qualify.serving.telemetry import GPU_ERRORS


def read_probes(directory: Path) -> ProbeRecord:
    """Reads the probes of one arm.

    Args:
        directory: The arm's directory in the bundle.

    Returns:
        What is there; bundles from before a probe was there have nothing of it.

    Raises:
        EvidenceError: A file is damaged.
    """
    samples = next((path for name in (f"{METRICS}.gz", METRICS) if (path := directory / name).exists()), None)
    errors = directory / GPU_ERRORS
    return ProbeRecord(
        samples=tuple(read_samples(samples)) if samples else (),
        log=read_signs(log_lines(directory / "server.log")),
        gpu_errors=tuple(errors.read_text(encoding="utf-8", errors="replace").splitlines())
        if errors.exists()
        else None,
    )
