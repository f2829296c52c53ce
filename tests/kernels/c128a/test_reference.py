"""The reference against the contract's sentences, column by column."""

import itertools

import pytest
import torch
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.layout import Batch, Buffers, Dcp

POISON = -77


def rows_by_the_sentence(position, width, pages, page_size, dcp):
    """One decode row, written out as the contract says it: entry by entry, kept or not."""
    seen = min((position + 1) // 128, width)
    kept = []
    for entry in range(seen):
        in_span = entry % (page_size * dcp.world_size)
        if (in_span // dcp.interleave) % dcp.world_size != dcp.rank:
            continue
        local = (in_span // (dcp.world_size * dcp.interleave)) * dcp.interleave + in_span % dcp.interleave
        kept.append(pages[entry // (page_size * dcp.world_size)] * page_size + local)
    return kept + [-1] * (width - len(kept)), len(kept)


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize(("page_size", "interleave"), [(2, 1), (2, 2), (4, 2), (6, 1), (256, 2)])
def test_decode_rows_are_what_the_contract_says(world, page_size, interleave):
    width, positions = 256, [0, 126, 127, 128 * 77 + 5, 128 * 256 - 1, 128 * 900]
    pages = [1000 + 7 * page for page in range(-(-width // (page_size * world)))]
    for rank in range(world):
        dcp = Dcp(world, rank, interleave)
        buffers = Buffers.allocate(8, 384, fill=POISON)
        batch = Batch(
            positions=torch.tensor(positions),
            num_decode_tokens=len(positions),
            token_to_req=torch.zeros(len(positions), dtype=torch.int32),
            block_table=torch.tensor([pages], dtype=torch.int32),
            block_size=page_size,
            slot_mapping=torch.zeros(len(positions), dtype=torch.int64),
            width=width,
        )
        reference.build(batch, buffers, dcp)
        for row, position in enumerate(positions):
            right, length = rows_by_the_sentence(position, width, pages, page_size, dcp)
            assert buffers.decode[row].tolist() == right + [POISON] * 128
            assert buffers.lens[row].item() == length


def test_the_ranks_of_a_group_hold_every_slot_once():
    """Two pages of each rank's cache, filled by 3 ranks: all their slots, and none twice."""
    world, page_size, entries = 3, 4, 24
    held = []
    for rank in range(world):
        dcp = Dcp(world, rank, 2)
        kept = reference.owned_entries(entries, page_size, dcp)
        slots = reference.entry_slots(kept, torch.tensor([5, 9], dtype=torch.int32), page_size, dcp)
        assert sorted(slots.tolist()) == [20, 21, 22, 23, 36, 37, 38, 39]
        held.extend(kept.tolist())
    assert sorted(held) == list(range(entries))


def test_a_request_or_page_outside_the_table_reads_nothing():
    batch = Batch(
        positions=torch.tensor([1023, 1023, 1023]),
        num_decode_tokens=3,
        token_to_req=torch.tensor([-1, 2, 0], dtype=torch.int32),
        block_table=torch.tensor([[3], [5]], dtype=torch.int32),
        block_size=2,
        slot_mapping=torch.zeros(3, dtype=torch.int64),
        width=128,
    )
    buffers = Buffers.allocate(3, 128, fill=POISON)
    reference.build(batch, buffers)
    assert buffers.decode[:2].eq(-1).all()
    assert buffers.decode[2].tolist() == [6, 7] + [-1] * 126
    assert buffers.lens.tolist() == [8, 8, 8]


@pytest.mark.parametrize(("writes", "queries"), list(itertools.product([-1, 0], [0, 1])))
def test_what_makes_a_token_real(writes, queries):
    """Alone, its slot mapping; under DCP, that it is a query."""
    lens = []
    for dcp in (Dcp(), Dcp(2, 0, 1)):
        buffers = Buffers.allocate(1, 128)
        batch = Batch(
            positions=torch.tensor([1023]),
            num_decode_tokens=1,
            token_to_req=torch.zeros(1, dtype=torch.int32),
            block_table=torch.tensor([[1, 2, 3, 4]], dtype=torch.int32),
            block_size=2,
            slot_mapping=torch.tensor([writes]),
            width=128,
            num_query_tokens=queries,
        )
        reference.build(batch, buffers, dcp)
        lens.append(buffers.lens.item())
    assert lens == [8 if writes >= 0 else 0, 4 if queries else 0]
