"""Entry point of the vLLM general plugin ``ds4_kernels``; vLLM calls it in the engine and in each worker."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from typing import TYPE_CHECKING

from ds4_kernels.emulated_replay import REPLAY_VARIABLE, ReplayMode, read_settings
from ds4_kernels.fix.signature import UnrecognisedBuilderError

if TYPE_CHECKING:
    from ds4_kernels.cpu.operators import Installed

SCHEDULING_PROCESS = "EngineCore"  # vLLM's name for the process that schedules and runs no model

_installed: list[Installed] = []  # at most one; keeps the operators registered


def register() -> None:
    """Check the environment; on a CPU install what serves DeepSeek V4, elsewhere the stride fix.

    A vLLM without DeepSeek V4 for the CPU (before 0.30) has its builder all the same, and gets the fix, too.

    Raises:
        SystemExit: an environment variable holds a wrong value, a fault is not confirmed, the C attention is
            missing, or the C128A metadata builder is not recognised; the message says what to do.
    """
    if _installed:
        return
    from vllm.platforms import current_platform

    try:
        if not (current_platform.is_cpu() and _serves_on_cpu()):
            from ds4_kernels.fix.server import install_on_gpu

            if os.environ.get(REPLAY_VARIABLE, ReplayMode.FRESH.value) != ReplayMode.FRESH.value:
                raise ValueError(f"{REPLAY_VARIABLE} acts on CPU servers only: unset it")
            install_on_gpu(os.environ)
            return
        settings = read_settings(os.environ)
        if not multiprocessing.current_process().name.startswith(SCHEDULING_PROCESS):
            from ds4_kernels.cpu.registration import install

            _installed.append(install(settings))
    except (ValueError, FileNotFoundError, UnrecognisedBuilderError) as error:
        raise SystemExit(f"ds4_kernels: {error}") from error


def _serves_on_cpu() -> bool:
    try:
        return importlib.util.find_spec("vllm.models.deepseek_v4.cpu") is not None
    except ModuleNotFoundError:  # no DeepSeek V4 at all
        return False


def active() -> bool:
    """Tell whether the plugin has installed its operators, or looked after the stride, in this process."""
    from ds4_kernels.fix import server

    return bool(_installed or server.installed())
