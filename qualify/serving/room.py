"""Whether the machine has room for the servers of several arms side by side, where that can be known."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from qualify.errors import MachineryError
from qualify.release import Release
from qualify.serving.arms import arm_settings
from qualify.transcript import Arm

GPU_SHARE = "gpu-memory-utilization"
# vLLM's default since 0.32; earlier ones take 0.9.
GPU_SHARE_DEFAULT = 0.92
_CPU_CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE"
_ANSWER_WITHIN_S = 10
_GIB = 2**30
_ADVICE = (
    "Free memory, or leave parallel_arms out of the release: the arms are then served one after another."
)


def gpu_shares(release: Release, arms: Sequence[Arm]) -> float:
    """Sum of the shares of a card's memory that the servers of some arms take.

    Args:
        release: The release.
        arms: Configured arms.
    """
    settings = (arm_settings(release, arm).arguments for arm in arms)
    return sum(float(arguments.get(GPU_SHARE, GPU_SHARE_DEFAULT)) for arguments in settings)


def check_room(release: Release, arms: Sequence[Arm], model: Path) -> None:
    """Refuses to start servers side by side where the machine has no room for them.

    Args:
        release: The release.
        arms: The arms that are to be served side by side.
        model: Directory of the checkpoint.

    Raises:
        MachineryError: There is less memory than they ask for.
    """
    if release.replay == "full-graph":
        _check_cards(gpu_shares(release, arms))
    needed = _host_bytes(release, arms, model)
    available = psutil.virtual_memory().available
    if needed > available:
        raise MachineryError(
            f"{len(arms)} servers side by side ask for {needed / _GIB:.1f} GiB of memory; "
            f"{available / _GIB:.1f} GiB are free",
            advice=_ADVICE,
        )


def _host_bytes(release: Release, arms: Sequence[Arm], model: Path) -> int:
    """Memory of the machine that the servers ask for; 0 where it cannot be known."""
    if release.serving.launcher == "docker":
        return int(release.serving.container.memory_gib * _GIB) * len(arms)
    if release.replay != "emulated":
        return 0
    weights = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    caches = (arm_settings(release, arm).environment.get(_CPU_CACHE_GIB, "0") for arm in arms)
    return sum(weights + int(float(cache) * _GIB) for cache in caches)


def _check_cards(shares: float) -> None:
    free = [free - shares * total for free, total in _cards()]
    if free and max(free) < 0:
        raise MachineryError(
            f"the servers side by side ask for {shares:.0%} of a graphics card's memory, "
            f"{-max(free) / 1024:.1f} GiB more than is free on any",
            advice=_ADVICE,
        )


def _cards() -> list[tuple[int, int]]:
    """Free and total memory of each graphics card in MiB; empty where it cannot be known."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(
            query, check=True, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S
        ).stdout
        pairs = [line.split(",") for line in output.splitlines()]
        return [(int(free), int(total)) for free, total in pairs]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
