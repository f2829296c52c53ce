"""The calling convention of vLLM's ``build_c128a_topk_metadata``, in all its released and forked forms.

Releases 0.20.2 to 0.33.0 share one list of parameters; forks with decode context parallelism add the number
of real query tokens and the DCP coordinates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ds4_kernels.c128a.layout import NO_DCP, Batch, Buffers, Builder, Dcp, Result, ViewDesign

VllmFunction = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]

_QUERY_TOKENS = "actual_num_query_tokens"
_DCP = ("dcp_world_size", "dcp_rank", "cp_kv_cache_interleave_size")
_COMMON = (
    "positions",
    "compress_ratio",
    "num_decode_tokens",
    "token_to_req_indices",
    "block_table",
    "block_size",
    "slot_mapping",
    "global_decode_buffer",
    "decode_lens_buffer",
    "prefill_buffer",
    "max_compressed_tokens",
)


class UnrecognisedBuilderError(RuntimeError):
    """The installed vLLM's builder is none that this package knows; says what is different."""


@dataclass(frozen=True)
class CallingConvention:
    """What a version of the function can be told.

    Attributes:
        signature: its parameters.
        takes_query_tokens: whether padding tokens can be marked.
        takes_dcp: whether it knows decode context parallelism.
    """

    signature: inspect.Signature
    takes_query_tokens: bool
    takes_dcp: bool


def calling_convention(function: VllmFunction) -> CallingConvention:
    """Read how a builder function is called.

    Args:
        function: a ``build_c128a_topk_metadata``.

    Returns:
        Its calling convention.

    Raises:
        UnrecognisedBuilderError: a known parameter is missing, or one without default is not known.
    """
    signature = inspect.signature(function)
    names = set(signature.parameters)
    known = {*_COMMON, _QUERY_TOKENS, *_DCP}
    missing = [name for name in _COMMON if name not in names]
    required = {name for name, p in signature.parameters.items() if p.default is inspect.Parameter.empty}
    unknown = sorted(required - known)
    some_dcp = [name for name in _DCP if name in names]
    if missing or unknown or (some_dcp and len(some_dcp) < len(_DCP)):
        raise UnrecognisedBuilderError(
            f"{function.__module__}.{function.__qualname__}{signature}: not a known form of the C128A "
            f"metadata builder (missing parameters: {missing or 'none'}; unknown ones: {unknown or 'none'}; "
            f"DCP parameters: {some_dcp or 'none'} of {list(_DCP)})"
        )
    return CallingConvention(signature, _QUERY_TOKENS in names, bool(some_dcp))


def is_vllm_convention(function: Callable[..., Any]) -> bool:
    """Tell a function of vLLM's calling convention from a ``Builder``."""
    return "global_decode_buffer" in inspect.signature(function).parameters


def as_builder(function: VllmFunction) -> Builder:
    """Wrap vLLM's function as a ``Builder``.

    Args:
        function: a ``build_c128a_topk_metadata``.

    Returns:
        A builder that calls it. The function chooses the returned views itself. Asking for padding tokens or
        DCP raises ValueError where the function has no argument for them.

    Raises:
        UnrecognisedBuilderError: the function's parameters are not known.
    """
    convention = calling_convention(function)

    def build(
        batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, _design: ViewDesign = ViewDesign.WHOLE_ROW, /
    ) -> Result:
        arguments = _common_arguments(batch, buffers)
        if convention.takes_query_tokens:
            arguments[_QUERY_TOKENS] = batch.query_tokens
        elif batch.query_tokens != batch.num_tokens:
            raise ValueError(
                f"num_query_tokens: got {batch.query_tokens}, this function takes only all tokens"
            )
        if convention.takes_dcp:
            arguments.update(zip(_DCP, (dcp.world_size, dcp.rank, dcp.interleave), strict=True))
        elif dcp.world_size != 1:
            raise ValueError(f"dcp world_size: got {dcp.world_size}, this function takes only 1")
        return Result(*function(**arguments))

    return build


def _common_arguments(batch: Batch, buffers: Buffers) -> dict[str, Any]:
    values = (
        batch.positions,
        batch.compress_ratio,
        batch.num_decode_tokens,
        batch.token_to_req,
        batch.block_table,
        batch.block_size,
        batch.slot_mapping,
        buffers.decode,
        buffers.lens,
        buffers.prefill,
        batch.width,
    )
    return dict(zip(_COMMON, values, strict=True))


def as_vllm_function(builder: Builder, design: ViewDesign, like: VllmFunction) -> VllmFunction:
    """Wrap a builder so that it can stand in for vLLM's function.

    Args:
        builder: the implementation to call.
        design: what the returned decode view spans.
        like: the function to stand in for; gives parameters and their defaults.

    Returns:
        A function with the parameters of ``like``.

    Raises:
        UnrecognisedBuilderError: the parameters of ``like`` are not known.
    """
    convention = calling_convention(like)

    def build_c128a_topk_metadata(
        *positional: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        bound = convention.signature.bind(*positional, **named)
        bound.apply_defaults()
        given = bound.arguments
        batch = Batch(
            positions=given["positions"],
            num_decode_tokens=given["num_decode_tokens"],
            token_to_req=given["token_to_req_indices"],
            block_table=given["block_table"],
            block_size=given["block_size"],
            slot_mapping=given["slot_mapping"],
            width=given["max_compressed_tokens"],
            compress_ratio=given["compress_ratio"],
            num_query_tokens=given.get(_QUERY_TOKENS),
        )
        buffers = Buffers(given["global_decode_buffer"], given["decode_lens_buffer"], given["prefill_buffer"])
        dcp = Dcp(*(given[name] for name in _DCP)) if convention.takes_dcp else NO_DCP
        result = builder(batch, buffers, dcp, design)
        return result.decode, result.lens, result.prefill

    build_c128a_topk_metadata.__signature__ = convention.signature  # type: ignore[attr-defined]
    return build_c128a_topk_metadata
