"""What the contract suite can be pointed at, and how each of them is called."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

import ds4_kernels
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import Buffers, Builder, ViewDesign
from ds4_kernels.contracts.cases import RATIO, Case
from ds4_kernels.fix.signature import as_builder, calling_convention, is_vllm_convention
from ds4_kernels.fix.stride import StrideFixPolicy

OWN_SUBJECTS = ("reference", "triton", "cuda")
BOTH_DESIGNS = (ViewDesign.WHOLE_ROW, ViewDesign.ACTIVE_WIDTH)


class Need(enum.Enum):
    """What a check needs; a check whose need is not met is reported as not run, with the reason."""

    QUERY_TOKENS = "padding tokens"
    DCP = "decode context parallelism"
    WIDTH_CHECK = "refusal of bad widths"
    ARGUMENT_CHECK = "refusal of bad arguments"
    GRAPHS = "CUDA graphs"
    SANITIZER = "compute-sanitizer"
    SCOPE = "vLLM's C4A and GLM metadata"


class SubjectError(RuntimeError):
    """A subject cannot be run; says why."""


@dataclass(frozen=True)
class SubjectRequest:
    """What the command line asks for.

    Attributes:
        name: ``reference``, ``triton``, ``cuda``, ``vllm`` or ``module:function``.
        vllm_root: folder that holds the ``vllm`` package to test; None takes the installed one.
        stride_fix: installs the stride fix first, by this policy (subject ``vllm``).
        fault: a fault to put in, to show that the suite catches it.
    """

    name: str
    vllm_root: Path | None = None
    stride_fix: StrideFixPolicy | None = None
    fault: MetadataFault | None = None

    def arguments(self) -> list[str]:
        """Give the command line that asks for the same."""
        words = ["--subject", self.name]
        if self.vllm_root:
            words += ["--vllm-root", str(self.vllm_root)]
        if self.stride_fix:
            words += ["--stride-fix", self.stride_fix.value]
        if self.fault:
            words += ["--fault", self.fault.value]
        return words


@dataclass(frozen=True)
class Subject:
    """An implementation under test.

    Attributes:
        name: what it was asked for as.
        version: its version.
        device: where it runs.
        builder: how it is called.
        designs: the returned-view designs that it can be asked for.
        lacks: needs that it does not meet, with the reason.
        request: how it was asked for.
        scope: what the stride fix changed beyond its scope; None where it was not installed.
    """

    name: str
    version: str
    device: torch.device
    builder: Builder
    request: SubjectRequest
    designs: tuple[ViewDesign, ...] = BOTH_DESIGNS
    lacks: Mapping[Need, str] = field(default_factory=dict)
    scope: list[str] | None = None


def resolve(request: SubjectRequest) -> Subject:
    """Make a subject ready to run, and run it once.

    Args:
        request: what the command line asks for.

    Returns:
        The subject.

    Raises:
        SubjectError: it cannot be run here.
    """
    if (request.vllm_root or request.stride_fix) and request.name != "vllm":
        raise SubjectError(f"{request.name}: --vllm-root and --stride-fix belong to subject vllm")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if request.name == "vllm":
        from ds4_kernels.contracts.vllm_subject import vllm_subject

        subject = vllm_subject(request, device)
    elif request.name in OWN_SUBJECTS:
        subject = _own_subject(request, device)
    elif ":" in request.name:
        subject = _imported_subject(request, device)
    else:
        known = ", ".join((*OWN_SUBJECTS, "vllm"))
        raise SubjectError(f"{request.name}: unknown subject; known: {known}, module:function")
    lacks = {**_missing_here(subject.device), **subject.lacks}
    if request.name != "vllm":
        lacks[Need.SCOPE] = "only vLLM has C4A and GLM metadata"
    subject = dataclasses.replace(subject, lacks=lacks)
    _try_once(subject)
    if request.fault:
        subject = dataclasses.replace(subject, builder=with_fault(subject.builder, request.fault))
    return subject


def _missing_here(device: torch.device) -> dict[Need, str]:
    """Give the needs that this machine does not meet."""
    missing: dict[Need, str] = {}
    if device.type != "cuda":
        missing[Need.GRAPHS] = "not on a GPU; the replay is checked with a read at the captured stride"
        missing[Need.SANITIZER] = "not on a GPU"
    elif shutil.which("compute-sanitizer") is None:
        missing[Need.SANITIZER] = "compute-sanitizer is not on the PATH"
    return missing


def _own_subject(request: SubjectRequest, device: torch.device) -> Subject:
    version = ds4_kernels.__version__
    if request.name == "reference":
        from ds4_kernels.c128a.reference import build

        return Subject("reference", version, torch.device("cpu"), build, request)
    if request.name == "triton":
        triton = _import("triton")
        from ds4_kernels.c128a.triton_kernel import build as build_triton

        return Subject("triton", f"{version} (triton {triton.__version__})", device, build_triton, request)
    from ds4_kernels.c128a.cuda_kernel import build as build_cuda

    if device.type != "cuda":
        raise SubjectError("cuda: no GPU here, and CUDA C++ runs nowhere else")
    return Subject("cuda", version, device, build_cuda, request)


def _imported_subject(request: SubjectRequest, device: torch.device) -> Subject:
    module_name, _, function_name = request.name.partition(":")
    module = _import(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SubjectError(f"{request.name}: {module_name} has no function {function_name}")
    version = str(getattr(module, "__version__", "unknown"))
    if not is_vllm_convention(function):
        return Subject(request.name, version, device, function, request)
    return Subject(
        request.name,
        version,
        device,
        as_builder(function),
        request,
        designs=(ViewDesign.WHOLE_ROW,),
        lacks=missing_arguments(function),
    )


def missing_arguments(function: Callable[..., object]) -> dict[Need, str]:
    """Give the needs that a function of vLLM's calling convention cannot meet.

    Args:
        function: a ``build_c128a_topk_metadata``.

    Returns:
        Needs and reasons.
    """
    convention = calling_convention(function)
    lacks = {Need.ARGUMENT_CHECK: "vLLM's function checks no argument but the width"}
    if not convention.takes_query_tokens:
        lacks[Need.QUERY_TOKENS] = "the function has no argument for padding tokens"
    if not convention.takes_dcp:
        lacks[Need.DCP] = "the function has no DCP arguments"
    return lacks


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SubjectError(f"{name}: cannot be imported: {error}") from error


def _try_once(subject: Subject) -> None:
    """Run the subject on one small step, to tell what cannot run from what fails."""
    case = Case((RATIO, 2 * RATIO), 1, (0, 0), ((1, 2),), 2, (True, True), 128, 128, 2)
    try:
        subject.builder(case.batch(subject.device), Buffers.allocate(2, 128, subject.device))
        if subject.device.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # a foreign function can fail in any way, and then it cannot be run
        raise SubjectError(f"{subject.name} {subject.version}: cannot be run here: {error!r}") from error
