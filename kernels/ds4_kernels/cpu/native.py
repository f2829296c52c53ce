"""Loads the C attention that was compiled with the package, in the variant for this CPU."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
from collections.abc import Callable
from pathlib import Path

import torch

LIBRARY = "_sparse_attention_{variant}"

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def cpu_variant() -> str:
    """Name the compiled variant for this CPU: ``avx512``, ``avx2`` or ``baseline``."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "baseline")


def library_path(variant: str) -> Path:
    """Find the library of one variant.

    Args:
        variant: ``avx512``, ``avx2`` or ``baseline``.

    Returns:
        Its path.

    Raises:
        FileNotFoundError: the package was installed without it.
    """
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / (LIBRARY.format(variant=variant) + suffix)
        if path.exists():
            return path
    raise FileNotFoundError(
        f"the C attention for this CPU ({LIBRARY.format(variant=variant)}) is not in {folder}: install "
        "ds4-kernels where a C compiler is found (pip install --no-deps --no-build-isolation ./kernels), "
        "or choose the slow one with DS4_CPU_ATTENTION=torch"
    )


@functools.cache
def load(variant: str) -> Attend:
    """Load one variant.

    Args:
        variant: ``avx512``, ``avx2`` or ``baseline``.

    Returns:
        A function with the signature of :func:`ds4_kernels.cpu.attention.attend_torch`.

    Raises:
        FileNotFoundError: the package was installed without it.
    """
    function = ctypes.CDLL(str(library_path(variant))).ds4_sparse_attention
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4 + [ctypes.c_float]

    def attend(
        queries: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor, sinks: torch.Tensor, scale: float
    ) -> torch.Tensor:
        # Kept in names until the call is over: the addresses below do not keep the copies alive.
        floats = [t.to(torch.float32).contiguous() for t in (queries, keys, sinks)]
        places = indices.to(torch.int32).contiguous()
        out = torch.empty_like(floats[0])
        tokens, heads, dim = out.shape
        failed = function(
            floats[0].data_ptr(),
            floats[1].data_ptr(),
            places.data_ptr(),
            floats[2].data_ptr(),
            out.data_ptr(),
            tokens,
            heads,
            places.shape[1],
            dim,
            scale,
        )
        if failed:
            raise MemoryError("the C attention found no memory for its scores")
        return out

    return attend
