"""What was measured of the graphics cards while arms were served: `nvidia-smi`'s samples in the bundle."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from qualify.evidence.bundle import Bundle
from qualify.reporting.html.tables import Table
from qualify.serving.telemetry import GPU_SAMPLES
from qualify.transcript import Arm

_UNKNOWN = "not recorded"


def gpu_table(bundle: Bundle, arms: Iterable[Arm]) -> Table | None:
    """Each card of each arm, with its largest memory, clock and power.

    Args:
        bundle: The bundle. A sample that was cut off, or is none, is passed over.
        arms: The arms.

    Returns:
        The table; None where no card was watched.
    """
    rows = [row for arm in arms for row in _cards(bundle, arm)]
    if not rows:
        return None
    return Table(
        caption="Graphics cards while arms were served: the largest of all samples",
        header=("arm", "card", "name", "memory, MiB", "clock, MHz", "power, W", "samples"),
        rows=tuple(rows),
    )


def _cards(bundle: Bundle, arm: Arm) -> list[tuple[str, ...]]:
    path = bundle.arm(arm) / GPU_SAMPLES
    if path.is_symlink() or not path.is_file():
        return []
    samples: dict[str, list[dict[str, str]]] = {}
    for sample in _samples(path):
        samples.setdefault(sample.get("index", "").strip(), []).append(sample)
    return [
        (
            str(arm),
            index,
            next((name for sample in found if (name := sample.get("name", "").strip())), _UNKNOWN),
            *(_largest(found, key) for key in ("memory.used", "clocks.current.sm", "power.draw")),
            str(len(found)),
        )
        for index, found in sorted(samples.items())
    ]


def _samples(path: Path) -> list[dict[str, str]]:
    """One entry a sample, by the names of its columns without their units."""
    found = []
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        try:
            for row in csv.DictReader(lines, skipinitialspace=True, restkey=""):
                found.append({key.split(" [")[0]: value for key, value in row.items() if key and value})
        except csv.Error:
            return []  # whatever it is, no table of samples
    return [sample for sample in found if "index" in sample]


def _largest(samples: list[dict[str, str]], key: str) -> str:
    values = [number for sample in samples if (number := _number(sample.get(key, ""))) is not None]
    return f"{max(values):g}" if values else _UNKNOWN


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
