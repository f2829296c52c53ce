"""Putting a metadata fault into a vLLM that serves, for a control arm."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import Batch, active_width
from ds4_kernels.fix.signature import as_builder, as_vllm_function
from ds4_kernels.fix.stride import BUILDER_FUNCTION, BUILDER_METHOD, owner_of_builder, probe_views
from ds4_kernels.ranks import on_ranks


@dataclass
class _LongestContext:
    """The longest context of the step that is being built, in tokens."""

    tokens: int = 0


def install_metadata_fault(
    module: ModuleType, fault: MetadataFault, ranks: frozenset[int] | None = None
) -> None:
    """Break the C128A metadata of every later step.

    The builder in place does the work; install the stride fix first, if at all. Packed rows get the width
    that a packing release gives them, from the step's longest context, whatever width the caller asks for.

    Args:
        module: the module of the installed vLLM that holds the builder.
        fault: what to break.
        ranks: on which ranks; None for all.

    Raises:
        UnrecognisedBuilderError: the builder is none that this package knows.
    """
    original = getattr(module, BUILDER_FUNCTION)
    owner, longest = owner_of_builder(module), _LongestContext()
    _, design = probe_views(original)
    method = getattr(owner, BUILDER_METHOD)

    @functools.wraps(method)
    def remember_longest_context(self: Any, metadata: Any, *positional: Any, **named: Any) -> Any:
        longest.tokens = metadata.max_seq_len
        return method(self, metadata, *positional, **named)

    def packed_width(batch: Batch) -> int:
        return active_width(longest.tokens, batch.width, batch.compress_ratio)

    right = as_builder(original)
    broken = on_ranks(with_fault(right, fault, packed_width), right, ranks)
    setattr(owner, BUILDER_METHOD, remember_longest_context)
    setattr(module, BUILDER_FUNCTION, as_vllm_function(broken, design, original))
