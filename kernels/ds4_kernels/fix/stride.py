"""Installing the capacity-stride builder on a vLLM whose C128A builder packs its rows.

``DS4_STRIDE_FIX`` says what to do: ``auto`` (the default) replaces a packing builder and leaves a right one
alone, ``always`` replaces a right one too, ``off`` does nothing. Buffers, their allocation and the attention
arithmetic stay vLLM's own.
"""

from __future__ import annotations

import enum
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ds4_kernels.c128a.layout import MIN_RATIO, NO_DCP, Batch, Buffers, Dcp, Result, ViewDesign
from ds4_kernels.fix.signature import UnrecognisedBuilderError, VllmFunction, as_builder, as_vllm_function

STRIDE_FIX_VARIABLE = "DS4_STRIDE_FIX"
BUILDER_FUNCTION = "build_c128a_topk_metadata"
#: Modules that hold the builder, newest layout first (releases up to 0.22 keep it in the second).
BUILDER_MODULES = (
    "vllm.models.deepseek_v4.sparse_mla",
    "vllm.v1.attention.backends.mla.flashmla_sparse",
)
BUILDER_METHOD = "_build_c128a_metadata"  # of vLLM's builder class; calls the function by its global name
_PROBE_CAPACITY, _PROBE_WIDTH = 256, 128


class StrideFixPolicy(enum.Enum):
    """What ``DS4_STRIDE_FIX`` asks for."""

    AUTO = "auto"
    ALWAYS = "always"
    OFF = "off"


class RowLayout(enum.Enum):
    """How a builder lays out its rows."""

    CAPACITY = "capacity"
    PACKED = "packed"


@dataclass(frozen=True)
class StrideFixReport:
    """What was found and done.

    Attributes:
        policy: what was asked for.
        builder: the function found, by its full name; None where nothing was looked for.
        layout: how it lays out its rows; None where nothing was looked for.
        installed: whether it was replaced.
    """

    policy: StrideFixPolicy
    builder: str | None = None
    layout: RowLayout | None = None
    installed: bool = False

    def __str__(self) -> str:
        asked = f"{STRIDE_FIX_VARIABLE}={self.policy.value}"
        if self.builder is None:
            return f"C128A stride fix: {asked}, nothing was changed"
        layout = self.layout.value if self.layout else "unknown"
        done = "replaced by the capacity-stride builder" if self.installed else "already right, left as it is"
        return f"C128A stride fix: {asked}; {self.builder} lays out rows at the {layout} stride: {done}"


def install_stride_fix(environment: Mapping[str, str]) -> StrideFixReport:
    """Look at the installed vLLM's builder and replace it if the environment and its layout call for it.

    Args:
        environment: the process's environment.

    Returns:
        What was found and done; print it.

    Raises:
        ValueError: ``DS4_STRIDE_FIX`` holds a wrong value.
        UnrecognisedBuilderError: there is no builder, or none that this package knows; do not serve.
    """
    policy = read_policy(environment)
    if policy is StrideFixPolicy.OFF:
        return StrideFixReport(policy)
    return install_in_module(find_builder_module(), policy)


def read_policy(environment: Mapping[str, str]) -> StrideFixPolicy:
    """Read ``DS4_STRIDE_FIX``.

    Args:
        environment: the process's environment.

    Returns:
        The policy, ``auto`` where the variable is not set.

    Raises:
        ValueError: it holds a wrong value.
    """
    value = environment.get(STRIDE_FIX_VARIABLE, StrideFixPolicy.AUTO.value)
    try:
        return StrideFixPolicy(value)
    except ValueError:
        known = ", ".join(policy.value for policy in StrideFixPolicy)
        raise ValueError(f"{STRIDE_FIX_VARIABLE}={value!r} is unknown; known values: {known}") from None


def find_builder_module() -> ModuleType:
    """Import the module of the installed vLLM that holds the builder.

    Returns:
        The module.

    Raises:
        UnrecognisedBuilderError: no known module has the function.
    """
    for name in BUILDER_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        if hasattr(module, BUILDER_FUNCTION):
            return module
    raise UnrecognisedBuilderError(
        f"no {BUILDER_FUNCTION} in {' or '.join(BUILDER_MODULES)}: this vLLM builds the C128A metadata in a "
        f"way that is not known here; {STRIDE_FIX_VARIABLE}=off serves without looking"
    )


def install_in_module(module: ModuleType, policy: StrideFixPolicy) -> StrideFixReport:
    """Look at a module's builder and replace it if its layout calls for it.

    Whatever is left in place is run once on the GPU, with two rows, when vLLM makes its first metadata
    builder for a C128A layer: a builder whose views look right but whose rows are not stops the server.

    Args:
        module: a module that defines ``build_c128a_topk_metadata``.
        policy: AUTO or ALWAYS.

    Returns:
        What was found and done.

    Raises:
        UnrecognisedBuilderError: the builder's parameters, class or views are not known.
    """
    original: VllmFunction = getattr(module, BUILDER_FUNCTION)
    name = f"{module.__name__}.{BUILDER_FUNCTION}"
    layout, design = probe_views(original)
    owner = owner_of_builder(module)
    replace = layout is RowLayout.PACKED or policy is StrideFixPolicy.ALWAYS
    if replace:
        fixed = as_vllm_function(build_on_device, design, original)
        for holder in modules_holding(original):
            setattr(holder, BUILDER_FUNCTION, fixed)
    _check_when_made(owner, getattr(module, BUILDER_FUNCTION))
    return StrideFixReport(policy, name, layout, replace)


def owner_of_builder(module: ModuleType) -> type[Any]:
    """Give the class that calls the builder function.

    Args:
        module: the module that holds both.

    Returns:
        vLLM's metadata builder class.

    Raises:
        UnrecognisedBuilderError: there is none, or more than one.
    """
    owners = [
        value for value in vars(module).values() if isinstance(value, type) and BUILDER_METHOD in vars(value)
    ]
    if len(owners) != 1:
        names = [owner.__name__ for owner in owners]
        raise UnrecognisedBuilderError(
            f"{module.__name__}: expected one class with {BUILDER_METHOD}, found {names}"
        )
    return owners[0]


def probe_views(function: VllmFunction) -> tuple[RowLayout, ViewDesign]:
    """Read a builder's row layout off the views that it returns for a batch without tokens.

    Such a call launches nothing, so that it works in a process that must not touch the GPU.

    Args:
        function: a ``build_c128a_topk_metadata``.

    Returns:
        The layout, and what its decode view should span: of a packing builder, the whole row, as in the
        releases before and after it.

    Raises:
        UnrecognisedBuilderError: the parameters are not known, or the views have neither stride.
    """
    empty = torch.empty(0, dtype=torch.int64)
    batch = Batch(empty, 0, empty.int(), torch.empty((1, 1), dtype=torch.int32), 2, empty, _PROBE_WIDTH)
    buffers = Buffers.allocate(2, _PROBE_CAPACITY)
    view = as_builder(function)(batch, buffers).decode
    found = (tuple(view.shape), view.stride())
    match found:
        case ((0, 256), (256, 1)):
            return RowLayout.CAPACITY, ViewDesign.WHOLE_ROW
        case ((0, 128), (256, 1)):
            return RowLayout.CAPACITY, ViewDesign.ACTIVE_WIDTH
        case ((0, 128), (128, 1)):
            return RowLayout.PACKED, ViewDesign.WHOLE_ROW
    raise UnrecognisedBuilderError(
        f"{function.__module__}.{BUILDER_FUNCTION}: for no tokens, width {_PROBE_WIDTH} and capacity "
        f"{_PROBE_CAPACITY} its decode view has shape {found[0]} and strides {found[1]}: not a known layout"
    )


def check_rows(function: VllmFunction, device: torch.device) -> None:
    """Build two decode rows and look where they lie.

    Args:
        function: a ``build_c128a_topk_metadata``.
        device: where to run it.

    Raises:
        UnrecognisedBuilderError: row 1 does not begin at the capacity, or holds wrong entries.
    """
    batch = Batch(
        positions=torch.tensor([255, 1023], device=device),
        num_decode_tokens=2,
        token_to_req=torch.tensor([0, 1], dtype=torch.int32, device=device),
        block_table=torch.tensor([[3], [5]], dtype=torch.int32, device=device),
        block_size=_PROBE_CAPACITY,
        slot_mapping=torch.zeros(2, dtype=torch.int64, device=device),
        width=_PROBE_WIDTH,
    )
    buffers = Buffers.allocate(2, _PROBE_CAPACITY, device)
    as_builder(function)(batch, buffers)
    found = buffers.decode[:, :9].tolist(), buffers.lens.tolist()
    right = [[768, 769, *[-1] * 7], [*range(1280, 1288), -1]], [2, 8]
    if found != right:
        name = f"{function.__module__}.{BUILDER_FUNCTION}"
        raise UnrecognisedBuilderError(
            f"{name}: two decode rows of 2 and 8 entries, width {_PROBE_WIDTH}, capacity {_PROBE_CAPACITY}: "
            f"expected {right}, found {found}; this server would read wrong entries"
        )


def build_on_device(
    batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW, /
) -> Result:
    """Build with this package's kernel: CUDA C++ where its library was built, Triton otherwise.

    Args:
        batch: the step's tokens.
        buffers: the preallocated outputs.
        dcp: how entries are spread over ranks.
        design: what the returned decode view spans.

    Returns:
        Views of the buffers at the capacity stride.
    """
    from ds4_kernels.c128a.cuda_library import library_path

    if buffers.decode.is_cuda and library_path().is_file():
        from ds4_kernels.c128a.cuda_kernel import build as build_cuda

        return build_cuda(batch, buffers, dcp, design)
    from ds4_kernels.c128a.triton_kernel import build as build_triton

    return build_triton(batch, buffers, dcp, design)


def modules_holding(function: VllmFunction) -> list[ModuleType]:
    """Give the loaded modules of vLLM that hold the function, its own and those that imported it.

    Args:
        function: a ``build_c128a_topk_metadata``.

    Returns:
        The modules in which it has to be replaced.
    """
    loaded = [module for name, module in sys.modules.items() if name.startswith("vllm.")]
    return [module for module in loaded if vars(module).get(BUILDER_FUNCTION) is function]


def _check_when_made(owner: type[Any], function: VllmFunction) -> None:
    """Let the class that calls the function check it on the GPU when its first C128A builder is made."""
    make: Callable[..., None] = owner.__init__
    if getattr(make, "checks_c128a_rows", False):
        return
    checked = False

    @functools.wraps(make)
    def make_and_check(self: Any, *positional: Any, **named: Any) -> None:
        nonlocal checked
        make(self, *positional, **named)
        device = torch.device(self.device)
        if not checked and getattr(self, "compress_ratio", 1) >= MIN_RATIO and device.type == "cuda":
            check_rows(function, device)
            checked = True

    make_and_check.checks_c128a_rows = True  # type: ignore[attr-defined]
    owner.__init__ = make_and_check
