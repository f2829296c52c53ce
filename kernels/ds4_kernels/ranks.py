"""What is one rank's own where a model is spread over several processes: its step log, and a control's fault.

``DS4_FAULT_RANKS=1`` (or ``0,2``) puts a control's fault into these ranks only; without it, into all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ds4_kernels.c128a.layout import NO_DCP, Batch, Buffers, Builder, Dcp, Result, ViewDesign

RANKS_VARIABLE = "DS4_FAULT_RANKS"


def current_rank() -> int:
    """Give this process's rank among those that run the model; 0 where there is but one."""
    from torch import distributed

    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def rank_log(path: Path, rank: int) -> Path:
    """Give the step log of one rank.

    Args:
        path: the step log that the environment names, e.g. ``steps.jsonl``.
        rank: the rank.

    Returns:
        The path itself for rank 0, else e.g. ``steps.rank1.jsonl`` beside it.
    """
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def read_fault_ranks(environment: Mapping[str, str]) -> frozenset[int] | None:
    """Read ``DS4_FAULT_RANKS``.

    Args:
        environment: the process's environment.

    Returns:
        The ranks, or None for all.

    Raises:
        ValueError: it is no list of whole numbers.
    """
    value = environment.get(RANKS_VARIABLE, "")
    if not value:
        return None
    parts = value.split(",")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{RANKS_VARIABLE}={value!r}: expected ranks separated by commas, e.g. 0,1")
    return frozenset(int(part) for part in parts)


def on_ranks(broken: Builder, right: Builder, ranks: frozenset[int] | None) -> Builder:
    """Break a builder on some ranks only.

    Args:
        broken: what these ranks build with.
        right: what the others build with.
        ranks: the ranks; None for all.

    Returns:
        A builder that asks for its rank at each step: a plugin is loaded before ranks are given.
    """
    if ranks is None:
        return broken

    def build(
        batch: Batch, buffers: Buffers, dcp: Dcp = NO_DCP, design: ViewDesign = ViewDesign.WHOLE_ROW, /
    ) -> Result:
        return (broken if current_rank() in ranks else right)(batch, buffers, dcp, design)

    return build
