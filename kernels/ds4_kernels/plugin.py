"""Entry point of the vLLM general plugin ``ds4_kernels``; vLLM calls it in the engine and in each worker."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

from ds4_kernels.emulated_replay import ReplayMode, read_settings

if TYPE_CHECKING:
    from ds4_kernels.cpu.operators import Installed

SCHEDULING_PROCESS = "EngineCore"  # vLLM's name for the process that schedules and runs no model

_installed: list[Installed] = []  # at most one; keeps the operators registered


def register() -> None:
    """Check the environment and, on a CPU, install what serves DeepSeek V4.

    Raises:
        SystemExit: an environment variable holds a wrong value, a fault is not confirmed, or the C attention
            is missing; the message says what to do.
    """
    if _installed:
        return
    from vllm.platforms import current_platform

    try:
        settings = read_settings(os.environ)
        if not current_platform.is_cpu():
            if settings.mode is ReplayMode.EMULATED or settings.fault is not None:
                raise ValueError("DS4_REPLAY=emulated and DS4_FAULT act on CPU servers only: unset them")
        elif not multiprocessing.current_process().name.startswith(SCHEDULING_PROCESS):
            from ds4_kernels.cpu.registration import install

            _installed.append(install(settings))
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"ds4_kernels: {error}") from error
