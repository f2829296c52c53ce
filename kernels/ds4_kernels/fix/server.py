"""What the vLLM plugin does on a GPU: the stride fix, and a fault for a control arm."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ds4_kernels.c128a.faulty import MetadataFault
from ds4_kernels.faults import FAULT_VARIABLE, FaultForm, requested_fault
from ds4_kernels.fix.control import install_metadata_fault
from ds4_kernels.fix.stride import StrideFixReport, find_builder_module, install_stride_fix

logger = logging.getLogger("vllm.plugins.ds4_kernels")

_reports: list[StrideFixReport] = []  # at most one: vLLM may load its plugins more than once in a process


def install_on_gpu(environment: Mapping[str, str]) -> StrideFixReport:
    """Install the stride fix where it is needed, and the fault that the environment names; once in a process.

    Args:
        environment: the process's environment: ``DS4_STRIDE_FIX``, ``DS4_FAULT``, ``DS4_FAULT_CONFIRM``.

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
    report = install_stride_fix(environment)
    logger.info("%s", report)
    if fault is not None:
        install_metadata_fault(find_builder_module(), MetadataFault(fault.name))
        logger.warning("FAULT PUT IN ON PURPOSE: %s: %s", fault.name, fault.effect)
    _reports.append(report)
    return report
