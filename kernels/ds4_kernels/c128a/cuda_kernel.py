"""The C128A metadata in CUDA C++ (``metadata.cu``), as the torch operator ``ds4_kernels::c128a_metadata``."""

from __future__ import annotations

import contextlib
import functools

import torch

from ds4_kernels.c128a.cuda_library import Library, library_path, load_library
from ds4_kernels.c128a.layout import (
    NO_DCP,
    Batch,
    Buffers,
    Dcp,
    Result,
    ViewDesign,
    result_views,
    validate,
)

_STORE_BYTES = 16

_operators = torch.library.Library("ds4_kernels", "DEF")
_operators.define(
    "c128a_metadata(Tensor positions, Tensor token_to_req, Tensor block_table, Tensor slot_mapping, "
    "Tensor(a!) decode, Tensor(b!) lens, Tensor(c!) prefill, int num_decode_tokens, int num_query_tokens, "
    "int width, int compress_ratio, int block_size, "
    "int dcp_world_size, int dcp_rank, int dcp_interleave) -> ()"
)


@functools.cache
def _library_for(device_index: int) -> Library:
    library = load_library(library_path())
    major, minor = torch.cuda.get_device_capability(device_index)
    library.check_gpu(major, minor, torch.cuda.get_device_name(device_index))
    return library


def _launch(
    positions: torch.Tensor,
    token_to_req: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    decode: torch.Tensor,
    lens: torch.Tensor,
    prefill: torch.Tensor,
    num_decode_tokens: int,
    num_query_tokens: int,
    width: int,
    compress_ratio: int,
    block_size: int,
    dcp_world_size: int,
    dcp_rank: int,
    dcp_interleave: int,
) -> None:
    device = decode.device
    library = _library_for(device.index)
    here = device.index == torch.cuda.current_device()
    with contextlib.nullcontext() if here else torch.cuda.device(device):
        code = library.handle.ds4_c128a_build(
            positions.data_ptr(),
            token_to_req.data_ptr(),
            block_table.data_ptr(),
            slot_mapping.data_ptr(),
            decode.data_ptr(),
            lens.data_ptr(),
            prefill.data_ptr(),
            block_table.shape[0],
            block_table.shape[1],
            block_table.stride(0),
            decode.shape[1],
            positions.shape[0],
            num_decode_tokens,
            num_query_tokens,
            width,
            compress_ratio,
            block_size,
            dcp_world_size,
            dcp_rank,
            dcp_interleave,
            # what torch.cuda.current_stream(device).cuda_stream gives, without making a Stream object (5 us)
            torch._C._cuda_getCurrentRawStream(device.index),
        )
    library.check_code(code)


def _no_output(*_arguments: object) -> None:
    """Shape inference: the operator only writes its buffers."""


_operators.impl("c128a_metadata", _launch, "CUDA")
_operators.impl("c128a_metadata", _no_output, "Meta")


def build(
    batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW
) -> Result:
    """Write the metadata of one step into the buffers with one launch on the current stream.

    A request or page outside ``block_table`` gives entries of -1 and is never read.

    Args:
        batch: the step's tokens.
        buffers: the preallocated outputs; columns from ``batch.width`` on and unused rows stay untouched.
        dcp: how entries are spread over ranks.
        design: what the returned decode view spans.

    Returns:
        Views of the buffers at the capacity stride.

    Raises:
        ValueError: an argument is outside the contract; nothing was launched.
        LibraryError: the library is missing, lacks code for the GPU, or the launch failed.
    """
    validate(batch, buffers, dcp)
    _check_for_cuda(buffers)
    if batch.num_tokens:
        torch.ops.ds4_kernels.c128a_metadata(
            batch.positions,
            batch.token_to_req,
            batch.block_table,
            batch.slot_mapping,
            buffers.decode,
            buffers.lens,
            buffers.prefill,
            batch.num_decode_tokens,
            batch.query_tokens,
            batch.width,
            batch.compress_ratio,
            batch.block_size,
            dcp.world_size,
            dcp.rank,
            dcp.interleave,
        )
    return result_views(batch, buffers, design)


def _check_for_cuda(buffers: Buffers) -> None:
    for name, tensor in (("decode buffer", buffers.decode), ("prefill buffer", buffers.prefill)):
        if tensor.device.type != "cuda":
            raise ValueError(f"{name} device: got {tensor.device}, expected a CUDA device")
        address = tensor.data_ptr()
        if address % _STORE_BYTES:
            raise ValueError(f"{name} address: got {address:#x}, expected a multiple of {_STORE_BYTES}")
