"""Invariant 2, active prefix only: every element of the prefix is right, and nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given

from ds4_kernels.c128a.layout import ViewDesign
from ds4_kernels.contracts.cases import Case, cases
from ds4_kernels.contracts.subjects import Need, Subject
from ds4_kernels.contracts.suite.harness import assert_memory_is_right, build


def test_memory_is_exact(subject: Subject, design: ViewDesign) -> None:
    """Poison before, compare every element and the guard bands after."""

    @given(cases())
    def check(case: Case) -> None:
        assert_memory_is_right(build(subject, case, design))

    check()


@pytest.mark.needs(Need.QUERY_TOKENS)
def test_memory_is_exact_with_padding_tokens(subject: Subject, design: ViewDesign) -> None:
    """The same with padding tokens at the end of the batch."""

    @given(cases(padding=True))
    def check(case: Case) -> None:
        assert_memory_is_right(build(subject, case, design))

    check()


@pytest.mark.needs(Need.DCP)
@pytest.mark.needs(Need.QUERY_TOKENS)
def test_memory_is_exact_on_every_dcp_rank(subject: Subject, design: ViewDesign) -> None:
    """The same on ranks of 2 to 8, interleave 1 and 2, with padding tokens."""

    @given(cases(dcp=True, padding=True))
    def check(case: Case) -> None:
        assert_memory_is_right(build(subject, case, design))

    check()


@pytest.mark.needs(Need.DCP)
@pytest.mark.needs(Need.QUERY_TOKENS)
@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_dcp_ranks_share_out_every_entry(
    subject: Subject, design: ViewDesign, world: int, interleave: int
) -> None:
    """Together, the ranks hold each entry of a token exactly once."""
    from ds4_kernels.c128a.layout import Dcp

    entries = 101
    pages = tuple(range(10, 10 + 128))
    positions = (entries * 128, 3 * 128)
    lengths = []
    for rank in range(world):
        dcp = Dcp(world, rank, interleave)
        case = Case(positions, 2, (0, 0), (pages,), 2, (False, False), 128, 256, 2, dcp)
        lengths.append(build(subject, case, design).result.lens.tolist())
    assert [sum(row) for row in zip(*lengths, strict=True)] == [entries, 3], f"lengths by rank: {lengths}"
