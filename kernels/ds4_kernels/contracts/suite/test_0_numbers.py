"""The contract's table of numbers, checked by hand."""

from __future__ import annotations

import pytest

from ds4_kernels.c128a.layout import Dcp, ViewDesign
from ds4_kernels.contracts.cases import Case
from ds4_kernels.contracts.memory import POISON
from ds4_kernels.contracts.subjects import Need, Subject
from ds4_kernels.contracts.suite.harness import build


def _tail(values: list[int], count: int) -> list[int]:
    return values + [-1] * (count - len(values))


def test_decode_and_prefill_row(subject: Subject, design: ViewDesign) -> None:
    """Two entries of a decode token, four of a prefill token, and nothing beyond the width."""
    case = Case((255, 511), 1, (0, 0), ((3,),), 256, (True, True), 128, 256, 2)
    buffers = build(subject, case, design).memory.buffers
    assert buffers.decode[0].tolist() == _tail([768, 769], 128) + [POISON] * 128
    assert buffers.lens[0].item() == 2
    assert buffers.prefill[0].tolist() == _tail([0, 1, 2, 3], 128) + [POISON] * 128


def test_second_decode_row_lies_at_the_capacity(subject: Subject, design: ViewDesign) -> None:
    """Row 1 begins at column 0 of the buffers' row 1, not behind row 0's active width."""
    case = Case((255, 1023), 2, (0, 1), ((3,), (5,)), 256, (True, True), 128, 256, 2)
    buffers = build(subject, case, design).memory.buffers
    assert buffers.decode[1, :9].tolist() == [*range(1280, 1288), -1], (
        f"row 1 of the decode buffer begins {buffers.decode[1, :3].tolist()}, not 1280, 1281, 1282; where it "
        f"would lie at stride 128, the width, is {buffers.decode[0, 128:131].tolist()}"
    )
    assert buffers.lens[:2].tolist() == [2, 8]


@pytest.mark.needs(Need.DCP)
@pytest.mark.needs(Need.QUERY_TOKENS)
@pytest.mark.parametrize(("rank", "slots"), [(0, [22, 23, 34]), (1, [22, 23])])
def test_two_dcp_ranks(subject: Subject, design: ViewDesign, rank: int, slots: list[int]) -> None:
    """Each rank keeps its own entries, and a token that writes no KV here attends all the same."""
    tokens = ((639, 639, 639), 1, (0, 0, 0))
    case = Case(*tokens, ((11, 17),), 2, (False,) * 3, 128, 128, 2, Dcp(2, rank, 1))
    buffers = build(subject, case, design).memory.buffers
    assert buffers.decode[0].tolist() == _tail(slots, 128)
    assert buffers.lens[0].item() == len(slots)
    assert buffers.prefill[0].tolist() == _tail([0, 1, 2, 3, 4], 128)
    assert buffers.prefill[1].tolist() == [-1] * 128, "a padding token sees no entry"
