"""vLLM's own metadata builder as a subject: the installed one, or one in a folder."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import torch

from ds4_kernels.c128a.layout import ViewDesign
from ds4_kernels.contracts.scope import scope_differences
from ds4_kernels.contracts.subjects import Need, Subject, SubjectError, SubjectRequest, missing_arguments
from ds4_kernels.contracts.vllm_source import (
    ReleaseSource,
    SourceError,
    defines_builder,
    find_release,
    load_builder_module,
)
from ds4_kernels.fix.signature import UnrecognisedBuilderError, as_builder
from ds4_kernels.fix.stride import BUILDER_FUNCTION, BUILDER_MODULES, install_in_module


def vllm_subject(request: SubjectRequest, device: torch.device) -> Subject:
    """Make vLLM's function ready to be tested.

    Where there is a GPU and no folder was named, the installed vLLM is imported as a server would. Elsewhere
    its module is executed unmodified with the real Triton (``vllm_source``).

    Args:
        request: what the command line asks for.
        device: where it runs.

    Returns:
        The subject.

    Raises:
        SubjectError: there is no vLLM, it has no such function, or the fix refuses it.
    """
    try:
        release = find_release(request.vllm_root or _installed_root())
        in_place = request.vllm_root is None and device.type == "cuda"
        module = _import_installed(release) if in_place else load_builder_module(release)
    except SourceError as error:
        raise SubjectError(f"vllm: {error}") from error
    lacks: dict[Need, str] = {}
    scope = None
    try:
        if request.stride_fix:
            scope = scope_differences(module, lambda: install_in_module(module, request.stride_fix))
            lacks[Need.ARGUMENT_CHECK] = "the installed function has vLLM's calling convention"
        else:
            lacks[Need.SCOPE] = "the stride fix is not installed, so there is nothing to compare"
        function = getattr(module, BUILDER_FUNCTION)
        lacks = {**missing_arguments(function), **lacks}
    except UnrecognisedBuilderError as error:
        raise SubjectError(f"vllm {release.version}: {error}") from error
    if not (request.stride_fix or caller_narrows_width(inspect.getsource(module))):
        lacks[Need.WIDTH_CHECK] = "its only caller always passes the capacity, so it has no width to check"
    version = f"{release.version}{' + stride fix' if request.stride_fix else ''}"
    return Subject(
        "vllm",
        version,
        device,
        as_builder(function),
        request,
        designs=(ViewDesign.WHOLE_ROW,),  # the function chooses its views itself
        lacks=lacks,
        scope=scope,
    )


def caller_narrows_width(source: str) -> bool:
    """Tell whether the module calls the builder with another width than the buffers' capacity.

    Args:
        source: source text of the module that defines the function and its caller.

    Returns:
        False if every call passes ``self.c128a_max_compressed``.
    """
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == BUILDER_FUNCTION
    ]
    widths = [word.value for call in calls for word in call.keywords if word.arg == "max_compressed_tokens"]
    capacity = "self.c128a_max_compressed"
    return len(widths) < len(calls) or any(ast.unparse(width) != capacity for width in widths)


def _installed_root() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise SourceError("vllm is not installed in this environment")
    return Path(spec.submodule_search_locations[0]).parent


def _import_installed(release: ReleaseSource) -> ModuleType:
    for name in BUILDER_MODULES:
        if defines_builder(release.file_of(name)):
            return importlib.import_module(name)
    raise SourceError(f"vllm {release.version} defines no {BUILDER_FUNCTION}")
