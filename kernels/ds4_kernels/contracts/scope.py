"""Invariant 6: what the stride fix must leave alone, looked at before and after it is installed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from ds4_kernels.fix.stride import BUILDER_FUNCTION, owner_of_builder

_MLA = "vllm.v1.attention.backends.mla"
#: Where C4A indexer metadata (compressor, indexer) and GLM sparse MLA (index conversion) are built.
_MODULES = (f"{_MLA}.compressor_utils", f"{_MLA}.indexer", f"{_MLA}.sparse_utils")
_C4A_RATIO = 4


def scope_differences(module: ModuleType, install: Callable[[], object]) -> list[str]:
    """Install the fix, and compare paths and values that it must not change.

    Args:
        module: the module that holds the C128A builder.
        install: installs the fix into it.

    Returns:
        One line for each difference; empty where only the C128A builder changed.
    """
    modules = [module, *(importlib.import_module(name) for name in _MODULES)]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    paths, values = _paths(modules), _values(device)
    # the builder function, and the constructor that checks it on the GPU
    owner = owner_of_builder(module)
    allowed = {f"{module.__name__}.{name}" for name in (BUILDER_FUNCTION, f"{owner.__name__}.__init__")}
    install()
    new_paths, new_values = _paths(modules), _values(device)
    lines = [
        f"{name}: another function after the fix was installed"
        for name in sorted(paths.keys() | new_paths.keys())
        if paths.get(name) is not new_paths.get(name) and name not in allowed
    ]
    for name, before in values.items():
        if not _same(before, new_values[name]):
            lines.append(f"{name}: other values after the fix was installed")
    return lines


def _paths(modules: list[ModuleType]) -> dict[str, object]:
    """Give every function, kernel and method that the modules define, by name."""
    found: dict[str, object] = {}
    for module in modules:
        for name, value in vars(module).items():
            kernel = getattr(value, "fn", value)  # what Triton made a kernel of
            if getattr(kernel, "__module__", None) != module.__name__:
                continue
            found[f"{module.__name__}.{name}"] = value
            if inspect.isclass(value):
                for attribute, member in vars(value).items():
                    found[f"{module.__name__}.{name}.{attribute}"] = member
    return found


def _values(device: torch.device) -> dict[str, list[torch.Tensor]]:
    """Run the metadata functions of C4A layers and GLM sparse MLA on small inputs."""
    arguments = _arguments(device)
    values = {}
    for module_name, function_name in (
        (_MODULES[0], "get_compressed_slot_mapping"),
        (_MODULES[1], "build_prefill_chunk_metadata"),
        (_MODULES[2], "triton_convert_req_index_to_global_index"),
    ):
        function = getattr(importlib.import_module(module_name), function_name)
        parameters = inspect.signature(function).parameters
        outcome = function(**{name: value for name, value in arguments.items() if name in parameters})
        values[f"{module_name}.{function_name}"] = list(_tensors(outcome))
    return values


def _arguments(device: torch.device) -> dict[str, Any]:
    """Give inputs by parameter name: two requests of 9 and 6 new tokens, and top-k rows of 4 tokens."""

    def ints(values: list[int], dtype: torch.dtype = torch.int32, on: torch.device = device) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=on)

    cpu = torch.device("cpu")
    lengths, starts = [40, 30], [0, 9, 15]
    entries = [length // _C4A_RATIO for length in lengths]
    return {
        "num_tokens": 15,
        "slot_mapping": torch.arange(15, dtype=torch.int64, device=device),
        "query_start_loc": ints(starts),
        "query_start_loc_cpu": ints(starts, on=cpu),
        "seq_lens": ints(lengths),
        "uncompressed_seq_lens": ints(lengths),
        "compressed_seq_lens": ints(entries),
        "compressed_seq_lens_cpu": ints(entries, on=cpu),
        "block_table": torch.arange(20, dtype=torch.int32, device=device).view(2, 10) * 3,
        "block_size": 4,
        "compress_ratio": _C4A_RATIO,
        "start_idx": 0,
        "end_idx": 2,
        "req_id": ints([0, 0, 1, 1]),
        "token_indices": (torch.arange(512, dtype=torch.int32, device=device).view(4, 128) * 7) % 41 - 1,
        "BLOCK_SIZE": 4,
        "NUM_TOPK_TOKENS": 128,
        "BLOCK_N": 128,
    }


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Give the tensors inside a result, whatever holds them."""
    if isinstance(value, torch.Tensor):
        yield value.detach().cpu()
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from _tensors(getattr(value, entry.name))


def _same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    pairs = zip(before, after, strict=False)
    return bool(before) and len(before) == len(after) and all(torch.equal(a, b) for a, b in pairs)
