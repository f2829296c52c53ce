"""Watches vLLM's model runner: after the metadata of a step is built, and before the model runs."""

from __future__ import annotations

import time
from typing import Any, Protocol

from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from ds4_kernels.step_recorder import StepRow, count_decodes, rows_of


class StepWatcher(Protocol):
    """Is told about each step."""

    def __call__(self, time_s: float, rows: list[StepRow], num_decodes: int) -> None:
        """Take note of one step.

        Args:
            time_s: Unix time, in seconds.
            rows: the step's requests in batch order, decodes first.
            num_decodes: how many of them are decodes.
        """


def install_step_hook(watch: StepWatcher) -> None:
    """Have a watcher told about each step of the CPU model runner.

    Args:
        watch: called between building the metadata and running the model.
    """
    build = CPUModelRunner._build_attention_metadata

    def build_and_watch(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        built = build(self, *args, **kwargs)
        scheduled = kwargs.get("num_scheduled_tokens")
        if scheduled is not None:  # else a dummy run
            rows = rows_of(self.input_batch, scheduled)
            watch(time.time(), rows, count_decodes(built[0]))
        return built

    CPUModelRunner._build_attention_metadata = build_and_watch
