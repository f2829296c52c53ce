"""Faults in any builder: what each of them does to a step."""

import pytest
import torch
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import PERIOD, MetadataFault, with_fault
from ds4_kernels.c128a.layout import Batch, Buffers
from ds4_kernels.faults import CATALOGUE


def step(entries=(2, 8, 5), width=128) -> Batch:
    rows = len(entries)
    return Batch(
        positions=torch.tensor([128 * count - 1 for count in entries]),
        num_decode_tokens=rows,
        token_to_req=torch.arange(rows, dtype=torch.int32),
        block_table=(100 * (torch.arange(rows, dtype=torch.int32) + 1)).unsqueeze(1),
        block_size=256,
        slot_mapping=torch.zeros(rows, dtype=torch.int64),
        width=width,
    )


def right(batch: Batch) -> Buffers:
    buffers = Buffers.allocate(4, 256, fill=-77)
    reference.build(batch, buffers)
    return buffers


def wrong_rows(batch: Batch, buffers: Buffers) -> list[int]:
    true = right(batch)
    return [row for row in range(3) if not torch.equal(true.decode[row, :128], buffers.decode[row, :128])]


def test_every_metadata_fault_of_the_catalogue_is_there():
    names = {name for name, fault in CATALOGUE.items() if fault.in_metadata}
    assert names == {fault.value for fault in MetadataFault}


@pytest.mark.parametrize("fault", MetadataFault)
def test_the_builder_itself_stays_right(fault):
    """A fault is put around a builder, not into it."""
    with_fault(reference.build, fault)(step(), Buffers.allocate(4, 256))
    assert right(step()).decode[0, :3].tolist() == [25600, 25601, -1]


def test_packed_rows_spare_row_0():
    buffers = Buffers.allocate(4, 256, fill=-77)
    with_fault(reference.build, MetadataFault.PACKED_STRIDE)(step(), buffers)
    assert wrong_rows(step(), buffers) == [1, 2]
    assert buffers.decode[0, 128:130].tolist() == [51200, 51201]


def test_packed_rows_are_right_where_the_width_is_the_capacity():
    wide = step(width=256)
    buffers = Buffers.allocate(4, 256, fill=-77)
    with_fault(reference.build, MetadataFault.PACKED_STRIDE)(wide, buffers)
    assert wrong_rows(wide, buffers) == []


def test_the_last_row_alone():
    buffers = Buffers.allocate(4, 256, fill=-77)
    with_fault(reference.build, MetadataFault.PACKED_STRIDE_LAST_ROW)(step(), buffers)
    assert wrong_rows(step(), buffers) == [2]


def test_a_stale_row_holds_what_an_earlier_step_left():
    """As in a server: after a wide step, the next step's last row reads the wide step's entries."""
    broken = with_fault(reference.build, MetadataFault.PACKED_STRIDE_LAST_ROW)
    buffers = Buffers.allocate(4, 256)
    broken(step(entries=(200, 200, 200), width=256), buffers)
    broken(step(), buffers)
    assert buffers.decode[2, :3].tolist() == [
        76800,
        76801,
        76802,
    ]  # row 2 of the wide step: request 2's first
    broken(step(entries=(3, 3)), buffers)
    assert buffers.decode[1, :3].tolist() != [51200, 51201, 51202]


def test_every_8th_step_alone():
    broken = with_fault(reference.build, MetadataFault.PACKED_STRIDE_EVERY_8TH_STEP)
    wrong = []
    for number in range(1, 2 * PERIOD + 1):
        buffers = Buffers.allocate(4, 256)
        broken(step(), buffers)
        if wrong_rows(step(), buffers):
            wrong.append(number)
    assert wrong == [PERIOD, 2 * PERIOD]


@pytest.mark.parametrize(
    ("fault", "row", "lens"),
    [
        (MetadataFault.STALE_TAIL, [25600, 25601, -77, -77], [2, 8, 5]),
        (MetadataFault.LENGTHS_OFF_BY_ONE, [25600, 25601, -1, -1], [1, 7, 4]),
        (MetadataFault.NEIGHBOUR_BLOCK_TABLE, [51200, 51201, -1, -1], [2, 8, 5]),
        (MetadataFault.NEWEST_ENTRY_MISSING, [25600, -1, -1, -1], [2, 8, 5]),
        (MetadataFault.WRONG_DCP_OWNER, [25600, 25601, -1, -1], [2, 8, 5]),  # acts under DCP only
    ],
)
def test_what_the_others_do_to_row_0(fault, row, lens):
    buffers = Buffers.allocate(4, 256, fill=-77)
    with_fault(reference.build, fault)(step(), buffers)
    assert buffers.decode[0, :4].tolist() == row
    assert buffers.lens[:3].tolist() == lens
