"""Invariant 7, width edges, and arguments outside the contract: refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ds4_kernels.c128a.layout import NO_DCP, Batch, Buffers, Dcp, ViewDesign
from ds4_kernels.contracts.cases import ROWS, Case
from ds4_kernels.contracts.memory import POISON, GuardedBuffers, guarded
from ds4_kernels.contracts.subjects import Need, Subject
from ds4_kernels.contracts.suite.harness import assert_memory_is_right, build

CAPACITY = 256
STEP = Case((255, 511, 700, 900), 2, (0, 1, 0, 1), ((3, 4), (5, 6)), 128, (True,) * 4, 128, CAPACITY, 4)


def _assert_untouched(memory: GuardedBuffers) -> None:
    for name, allocation, _ in memory.allocations:
        assert bool((allocation == POISON).all()), f"{name} was written although the call was refused"


def test_no_tokens_write_nothing(subject: Subject, design: ViewDesign) -> None:
    """T = 0 returns empty views and leaves every element as it is."""
    nothing = replace(STEP, positions=(), decodes=0, requests=(), writes=(), query_tokens=0)
    built = build(subject, nothing, design)
    _assert_untouched(built.memory)
    assert built.result.decode.shape[0] == built.result.lens.shape[0] == built.result.prefill.shape[0] == 0


@pytest.mark.parametrize("decodes", [0, 4])
def test_only_one_kind_of_token(subject: Subject, design: ViewDesign, decodes: int) -> None:
    """Steps of prefill tokens alone and of decode tokens alone."""
    assert_memory_is_right(build(subject, replace(STEP, decodes=decodes), design))


@pytest.mark.parametrize("width", [128, CAPACITY])
def test_smallest_and_largest_width(subject: Subject, design: ViewDesign, width: int) -> None:
    """Positions from 0 to beyond the width, at the narrowest and the widest row."""
    pages = tuple(tuple(range(start, start + CAPACITY // 2)) for start in (100, 900))
    edge = 128 * width
    step = replace(STEP, positions=(0, edge - 1, edge, 10 * edge), table=pages, page_size=2, width=width)
    assert_memory_is_right(build(subject, step, design))


@pytest.mark.needs(Need.WIDTH_CHECK)
@pytest.mark.parametrize("width", [0, -128, 1, 64, 127, 129, 200, CAPACITY + 1, CAPACITY + 128, 2 * CAPACITY])
def test_bad_widths_are_refused(subject: Subject, design: ViewDesign, width: int) -> None:
    """A width that is no multiple of 128, not positive or above the capacity; before a launch."""
    memory = guarded(ROWS, CAPACITY, subject.device)
    batch = replace(STEP.batch(subject.device), width=width)
    with pytest.raises((ValueError, AssertionError)):
        subject.builder(batch, memory.buffers, NO_DCP, design)
    _assert_untouched(memory)


@pytest.mark.needs(Need.ARGUMENT_CHECK)
@pytest.mark.parametrize("width", [200, CAPACITY + 128])
def test_bad_width_is_named_with_both_values(subject: Subject, design: ViewDesign, width: int) -> None:
    """The message names the width that was given and what it has to agree with."""
    batch = replace(STEP.batch(subject.device), width=width)
    with pytest.raises(ValueError, match=f"width: got {width}, expected .*(128|{CAPACITY})"):
        subject.builder(batch, guarded(ROWS, CAPACITY, subject.device).buffers, NO_DCP, design)


BAD_BATCHES: dict[str, Callable[[Batch], Batch]] = {
    "positions dtype": lambda b: replace(b, positions=b.positions.int()),
    "positions dimensions": lambda b: replace(b, positions=b.positions.view(2, 2)),
    "positions strides": lambda b: replace(b, positions=torch.stack([b.positions, b.positions], 1)[:, 0]),
    "token_to_req dtype": lambda b: replace(b, token_to_req=b.token_to_req.long()),
    "token_to_req length": lambda b: replace(b, token_to_req=b.token_to_req[:3]),
    "block_table dtype": lambda b: replace(b, block_table=b.block_table.long()),
    "block_table column stride": lambda b: replace(b, block_table=b.block_table.t()),
    "slot_mapping dtype": lambda b: replace(b, slot_mapping=b.slot_mapping.int()),
    "slot_mapping length": lambda b: replace(b, slot_mapping=b.slot_mapping[:1]),
    "block_size": lambda b: replace(b, block_size=0),
    "num_decode_tokens": lambda b: replace(b, num_decode_tokens=-1),
    "num_decode_tokens ": lambda b: replace(b, num_decode_tokens=5),
    "num_query_tokens": lambda b: replace(b, num_query_tokens=-1),
    "num_query_tokens ": lambda b: replace(b, num_query_tokens=5),
    "width \\* compress_ratio": lambda b: replace(b, compress_ratio=2**25),
}

BAD_BUFFERS: dict[str, Callable[[Buffers], Buffers]] = {
    "decode buffer dtype": lambda b: replace(b, decode=b.decode.long()),
    "lens buffer dtype": lambda b: replace(b, lens=b.lens.float()),
    "prefill buffer dtype": lambda b: replace(b, prefill=b.prefill.short()),
    "decode buffer strides": lambda b: replace(b, decode=b.decode[:, :128]),
    "prefill buffer strides": lambda b: replace(b, prefill=b.prefill[:, ::2]),
    "prefill buffer width": lambda b: replace(b, prefill=b.prefill.view(-1, 128)),
    "decode buffer rows": lambda b: replace(b, decode=b.decode[:1]),
    "lens buffer length": lambda b: replace(b, lens=b.lens[:1]),
    "prefill buffer rows": lambda b: replace(b, prefill=b.prefill[:1]),
    "(lens|decode) buffer device": lambda b: replace(b, lens=b.lens.to("meta")),
}

BAD_DCP = {
    "dcp rank": Dcp(2, 2, 1),
    "dcp rank ": Dcp(2, -1, 1),
    "dcp world_size": Dcp(0, 0, 1),
    "dcp interleave": Dcp(2, 0, 0),
    "dcp interleave ": Dcp(2, 0, 3),
}


@pytest.mark.needs(Need.ARGUMENT_CHECK)
@pytest.mark.parametrize("argument", BAD_BATCHES)
def test_bad_batches_are_refused(subject: Subject, design: ViewDesign, argument: str) -> None:
    """Wrong dtypes, shapes and sizes, named with what was given and what was expected."""
    memory = guarded(ROWS, CAPACITY, subject.device)
    batch = BAD_BATCHES[argument](STEP.batch(subject.device))
    with pytest.raises(ValueError, match=f"^{argument.strip()}: got .*, expected "):
        subject.builder(batch, memory.buffers, NO_DCP, design)
    _assert_untouched(memory)


@pytest.mark.needs(Need.ARGUMENT_CHECK)
@pytest.mark.parametrize("argument", BAD_BUFFERS)
def test_bad_buffers_are_refused(subject: Subject, design: ViewDesign, argument: str) -> None:
    """Wrong dtypes, strides, sizes and devices of the preallocated buffers."""
    memory = guarded(ROWS, CAPACITY, subject.device)
    with pytest.raises(ValueError, match=f"^{argument}: got .*, expected "):
        subject.builder(STEP.batch(subject.device), BAD_BUFFERS[argument](memory.buffers), NO_DCP, design)
    _assert_untouched(memory)


@pytest.mark.needs(Need.ARGUMENT_CHECK)
@pytest.mark.parametrize("argument", BAD_DCP)
def test_bad_dcp_coordinates_are_refused(subject: Subject, design: ViewDesign, argument: str) -> None:
    """A rank outside the world, and an interleave that does not divide a page."""
    memory = guarded(ROWS, CAPACITY, subject.device)
    with pytest.raises(ValueError, match=f"^{argument.strip()}: got .*, expected "):
        subject.builder(STEP.batch(subject.device), memory.buffers, BAD_DCP[argument], design)
    _assert_untouched(memory)
