"""Steps to put a builder through: the data of a step, and hypothesis strategies that draw them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from ds4_kernels.c128a.layout import ALIGNMENT, NO_DCP, Batch, Dcp

RATIO = 128
#: Entries in a page: 2 is DeepSeek V4's (256 tokens / 128); the others make other divisions visible.
PAGE_SIZES = (2, 1, 4, 6, 256)
MAX_WORLD = 8
ROWS = 12  # rows of the buffers: some always lie beyond the batch


@dataclass(frozen=True)
class Case:
    """One step, as plain values.

    Attributes:
        positions: position of each token, decode tokens first.
        decodes: how many tokens are decode tokens.
        requests: row of ``table`` of each token.
        table: pages of each request.
        page_size: entries in one page.
        writes: whether each token writes KV (its slot mapping is not negative).
        width: columns to initialise.
        capacity: row width of the buffers.
        query_tokens: tokens from this one on are padding.
        dcp: how entries are spread over ranks.
    """

    positions: tuple[int, ...]
    decodes: int
    requests: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    page_size: int
    writes: tuple[bool, ...]
    width: int
    capacity: int
    query_tokens: int
    dcp: Dcp = NO_DCP

    def batch(self, device: torch.device) -> Batch:
        """Put the step on a device."""

        def ints(values: object, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return Batch(
            positions=ints(self.positions, torch.int64),
            num_decode_tokens=self.decodes,
            token_to_req=ints(self.requests, torch.int32),
            block_table=ints(self.table, torch.int32),
            block_size=self.page_size,
            slot_mapping=ints([7 if writes else -1 for writes in self.writes], torch.int64),
            width=self.width,
            compress_ratio=RATIO,
            num_query_tokens=self.query_tokens,
        )


@dataclass(frozen=True)
class Shape:
    """What the cases of one server have in common."""

    capacity: int
    page_size: int
    dcp: Dcp


@st.composite
def shapes(draw: st.DrawFn, dcp: bool = False, least_capacity: int = ALIGNMENT) -> Shape:
    """Draw a server's fixed sizes.

    Args:
        draw: given by hypothesis.
        dcp: whether to spread the entries over 2 to 8 ranks, interleave 1 or 2.
        least_capacity: smallest capacity, in entries.

    Returns:
        A capacity of up to 1,280 entries, a page size and DCP coordinates.
    """
    capacity = ALIGNMENT * draw(st.integers(least_capacity // ALIGNMENT, 10))
    page_size = draw(st.sampled_from(PAGE_SIZES))
    if not dcp:
        return Shape(capacity, page_size, NO_DCP)
    world = draw(st.integers(2, MAX_WORLD))
    interleave = draw(st.sampled_from([i for i in (1, 2) if page_size % i == 0]))
    return Shape(capacity, page_size, Dcp(world, draw(st.integers(0, world - 1)), interleave))


@st.composite
def cases_of(
    draw: st.DrawFn, shape: Shape, padding: bool = False, prefills: tuple[int, int] = (2, 4)
) -> Case:
    """Draw a step of one server.

    Args:
        draw: given by hypothesis.
        shape: the server's sizes.
        padding: whether tokens at the end may be padding.
        prefills: fewest and most prefill tokens.

    Returns:
        At least two decode tokens with different positions (a stride error hides in row 0), and as many
        prefill tokens as asked for.
    """
    width = ALIGNMENT * draw(st.integers(1, shape.capacity // ALIGNMENT))
    decodes, prefill_tokens = draw(st.integers(2, 5)), draw(st.integers(*prefills))
    tokens = decodes + prefill_tokens
    # beyond the width as well, and close to where an entry begins
    anywhere = st.integers(0, RATIO * (width + 3))
    edge = st.integers(1, width).map(lambda entry: RATIO * entry)
    near_edge = st.tuples(edge, st.integers(-2, 1)).map(sum)
    positions = draw(st.lists(anywhere | near_edge, min_size=tokens, max_size=tokens, unique=True))
    requests = draw(st.integers(2, 4))
    pages = -(-width // (shape.page_size * shape.dcp.world_size))
    # rows of distinct page numbers: a slot tells which request and page it came from
    first_pages = draw(st.lists(st.integers(0, 400), min_size=requests, max_size=requests, unique=True))
    step = draw(st.sampled_from([1, 2, 7]))
    table = tuple(tuple(1000 * first + step * page for page in range(pages)) for first in first_pages)
    owners = st.lists(st.integers(0, requests - 1), min_size=tokens, max_size=tokens)
    return Case(
        positions=tuple(positions),
        decodes=decodes,
        requests=tuple(draw(owners)),
        table=table,
        page_size=shape.page_size,
        writes=tuple(draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens))),
        width=width,
        capacity=shape.capacity,
        query_tokens=draw(st.integers(1, tokens)) if padding else tokens,
        dcp=shape.dcp,
    )


def cases(dcp: bool = False, padding: bool = False) -> st.SearchStrategy[Case]:
    """Draw steps of any server; see ``shapes`` and ``cases_of`` for the arguments."""
    return shapes(dcp=dcp).flatmap(lambda shape: cases_of(shape, padding=padding))


def histories(dcp: bool = False) -> st.SearchStrategy[list[Case]]:
    """Draw three to six steps of one server without prefill tokens: the steps that a FULL graph replays."""
    return shapes(dcp=dcp, least_capacity=2 * ALIGNMENT).flatmap(
        lambda shape: st.lists(cases_of(shape, prefills=(0, 0)), min_size=3, max_size=6)
    )
