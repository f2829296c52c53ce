"""Invariant 6, scope: only layers with a ratio of 128 and more are touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds4_kernels.c128a.layout import NO_DCP, ViewDesign
from ds4_kernels.contracts.cases import ROWS, Case
from ds4_kernels.contracts.memory import POISON, guarded
from ds4_kernels.contracts.subjects import Need, Subject


@pytest.mark.needs(Need.ARGUMENT_CHECK)
def test_smaller_ratios_are_refused(subject: Subject, design: ViewDesign) -> None:
    """A C4A layer (ratio 4) chooses its entries with an indexer and must never come here."""
    case = Case((255, 511), 1, (0, 0), ((3,),), 256, (True, True), 128, 256, 2)
    memory = guarded(ROWS, 256, subject.device)
    with pytest.raises(ValueError, match="compress_ratio: got 4, expected >= 128"):
        subject.builder(replace(case.batch(subject.device), compress_ratio=4), memory.buffers, NO_DCP, design)
    assert all(bool((allocation == POISON).all()) for _, allocation, _ in memory.allocations)


@pytest.mark.needs(Need.SCOPE)
def test_c4a_and_glm_are_untouched(subject: Subject) -> None:
    """With the stride fix, C4A indexer and GLM sparse MLA metadata take the same path to the same values."""
    assert subject.scope is not None
    assert subject.scope is not None, "the scope was not looked at"
    assert not subject.scope, "\n".join(subject.scope)
