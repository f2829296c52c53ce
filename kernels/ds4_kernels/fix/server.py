"""What the vLLM plugin does on a GPU.

Another release's builder, the stride fix, a control arm's fault, and the record of the steps, in this order.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ds4_kernels.c128a.faulty import MetadataFault
from ds4_kernels.faults import FAULT_VARIABLE, FaultForm, requested_fault
from ds4_kernels.fix.control import install_metadata_fault
from ds4_kernels.fix.released_builder import install_released_builder, read_released_builder
from ds4_kernels.fix.signature import as_builder, as_vllm_function
from ds4_kernels.fix.stride import (
    BUILDER_FUNCTION,
    StrideFixReport,
    find_builder_module,
    install_stride_fix,
    probe_views,
)
from ds4_kernels.metadata_witness import MetadataWitness, wants_metadata
from ds4_kernels.ranks import read_fault_ranks
from ds4_kernels.step_recorder import step_log_path

logger = logging.getLogger("vllm.plugins.ds4_kernels")

_reports: list[StrideFixReport] = []  # at most one: vLLM may load its plugins more than once in a process


def install_on_gpu(environment: Mapping[str, str]) -> StrideFixReport:
    """Install the stride fix where it is needed, and what else the environment names; once in a process.

    Args:
        environment: the process's environment: ``DS4_RELEASED_BUILDER`` with its digest, ``DS4_STRIDE_FIX``,
            ``DS4_FAULT``, ``DS4_FAULT_CONFIRM``, ``DS4_FAULT_RANKS``, ``DS4_STEP_LOG``,
            ``DS4_STEP_METADATA``.

    Returns:
        What was found and done; it is logged, too.

    Raises:
        ValueError: a variable holds a wrong value, or a fault has no form here.
        UnrecognisedBuilderError: the builder is none that this package knows; do not serve.
    """
    if _reports:
        return _reports[0]
    fault = requested_fault(environment, FaultForm.GPU)
    if fault is not None and not fault.in_metadata:
        raise ValueError(f"{FAULT_VARIABLE}={fault.name} cannot be put into a GPU server: unset it")
    log, ranks, look = step_log_path(environment), read_fault_ranks(environment), wants_metadata(environment)
    released = read_released_builder(environment)
    if released is not None:
        install_released_builder(find_builder_module(), released)
        logger.warning("%s", released)
    report = install_stride_fix(environment)
    logger.info("%s", report)
    if fault is not None:
        install_metadata_fault(find_builder_module(), MetadataFault(fault.name), ranks)
        logger.warning("FAULT PUT IN ON PURPOSE: %s: %s", fault.name, fault.effect)
    if log is not None:
        _record_steps(log, _watch_metadata() if look else None)
    _reports.append(report)
    return report


def _watch_metadata() -> MetadataWitness:
    """Looks at what the builder leaves in the buffers, whatever was put in its place before."""
    module, witness = find_builder_module(), MetadataWitness()
    original = getattr(module, BUILDER_FUNCTION)
    _, design = probe_views(original)
    setattr(module, BUILDER_FUNCTION, as_vllm_function(witness.watch(as_builder(original)), design, original))
    return witness


def _record_steps(log: Path, witness: MetadataWitness | None) -> None:
    # only here: a process that records nothing need not load the model runner
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from ds4_kernels.graph_steps import install_graph_steps
    from ds4_kernels.graph_steps_v2 import install_graph_steps_v2, served_by_v2

    install_graph_steps(GPUModelRunner, torch.cuda.CUDAGraph, log, witness)
    if served_by_v2():
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner as GPUModelRunnerV2

        install_graph_steps_v2(GPUModelRunnerV2, torch.cuda.CUDAGraph, log, witness)


def installed() -> bool:
    """Tell whether `install_on_gpu` has done its work in this process."""
    return bool(_reports)
