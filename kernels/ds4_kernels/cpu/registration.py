"""Installs everything that serves DeepSeek V4 on a CPU into vLLM, without editing a file of vLLM."""

from __future__ import annotations

import faulthandler
import os

from vllm.logger import init_logger
from vllm.models.deepseek_v4.cpu.cpu_mla import DeepseekV4CPUSparseSWAMetadataBuilder
from vllm.platforms import current_platform
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.attention.backends.mla import sparse_swa

from ds4_kernels.cpu.attention import describe_selection, selected_attention
from ds4_kernels.cpu.attention_layer import install_attention_layer
from ds4_kernels.cpu.metadata_kernels import REPLACEMENTS
from ds4_kernels.cpu.operators import Installed, install_operators
from ds4_kernels.cpu.step_hook import install_step_hook
from ds4_kernels.emulated_replay import AbortUnderLoad, EmulatedReplay, ReplaySettings
from ds4_kernels.metadata_witness import MetadataWitness, wants_metadata
from ds4_kernels.ranks import current_rank, rank_log
from ds4_kernels.step_recorder import StepRecorder, StepRow, step_kind, step_log_path

logger = init_logger("vllm.plugins.ds4_kernels")


def install(settings: ReplaySettings) -> Installed:
    """Install everything; call once a process.

    Args:
        settings: what the environment asks for.

    Returns:
        Which operators were overridden and which defined; keep it, the operators live as long as it does.

    Raises:
        ValueError: an environment variable holds a wrong value.
        FileNotFoundError: the C attention is chosen and not installed.
    """
    faulthandler.enable()  # a worker that crashes by itself says so; one that is killed from outside does not
    selected_attention()  # fails now rather than at the first request
    current_platform.import_kernels()
    installed = install_operators()
    register_kernels(REPLACEMENTS)
    complete_tile_scheduler()
    watcher = EngineWatcher(settings)
    install_attention_layer(settings, watcher.set_replay)
    if watcher.needed:
        install_step_hook(watcher.step)
    logger.info(
        "DeepSeek V4 CPU operators: all %d of ds4_kernels (%d override vLLM's); attention: %s; replay: %s",
        len(installed.overridden) + len(installed.defined),
        len(installed.overridden),
        describe_selection(),
        settings.mode.label,
    )
    if settings.fault is not None:
        logger.warning("FAULT PUT IN ON PURPOSE: %s: %s", settings.fault.name, settings.fault.effect)
    return installed


def complete_tile_scheduler() -> None:
    """Add the keys that vLLM 0.30 to 0.33 reads but its CPU builder does not return (``KeyError: 'c1a'``)."""
    layer_types = [value for name, value in vars(sparse_swa).items() if name.startswith("_LAYER_TYPE_")]

    def build_tile_scheduler(
        self: DeepseekV4CPUSparseSWAMetadataBuilder, num_decode_tokens: int
    ) -> dict[str, None]:
        return dict.fromkeys(layer_types)

    DeepseekV4CPUSparseSWAMetadataBuilder.build_tile_scheduler = build_tile_scheduler


class EngineWatcher:
    """What is done in each step beside running the model: recording it, or aborting under load."""

    def __init__(self, settings: ReplaySettings) -> None:
        """Read ``DS4_STEP_LOG`` from the environment; the file is opened at the first step.

        Args:
            settings: what the environment asks for.

        Raises:
            ValueError: the step log's folder does not exist, or ``DS4_STEP_METADATA`` holds a wrong value.
        """
        self._path = step_log_path(os.environ)
        self._recorder: StepRecorder | None = None
        self._label = settings.mode.label
        self._replay: EmulatedReplay | None = None
        self._witness = MetadataWitness() if wants_metadata(os.environ) else None
        aborts = settings.fault is not None and not settings.fault.in_metadata
        self._abort = AbortUnderLoad(settings.abort_rows, settings.abort_steps) if aborts else None

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return self._path is not None or self._abort is not None

    def set_replay(self, replay: EmulatedReplay) -> None:
        """Take note of the emulated replay whose rows are recorded."""
        self._replay = replay
        if self._witness is not None:
            replay.watched_by(self._witness)

    def step(self, time_s: float, rows: list[StepRow], num_decodes: int) -> None:
        """Record one step, then count it for the abort.

        Args:
            time_s: Unix time, in seconds.
            rows: the step's requests in batch order, decodes first.
            num_decodes: how many of them are decodes.
        """
        if self._path is not None:
            if self._recorder is None:
                self._recorder = StepRecorder(rank_log(self._path, current_rank()), self._label)
            replayed = self._replay.rows_replayed if self._replay is not None else 0
            seen = self._witness.take() if self._witness is not None else None
            self._recorder.record(time_s, step_kind(len(rows), num_decodes), rows, replayed, metadata=seen)
        if self._abort is not None:
            self._abort.step(num_decodes, num_decodes == len(rows))
