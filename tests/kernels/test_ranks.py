"""What is one rank's own: its step log, a fault on it alone, and what is seen in its metadata."""

import json

import pytest
import torch
from ds4_kernels import ranks
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import Batch, Buffers
from ds4_kernels.metadata_witness import MetadataWitness, look, wants_metadata
from ds4_kernels.step_recorder import StepKind, StepRecorder

CAPACITY = 256
POSITIONS = [20_000, 900, 1_500]


def step(*, padding: int = 0) -> Batch:
    """Three decode rows, and padding behind them."""
    rows = len(POSITIONS) + padding
    return Batch(
        positions=torch.tensor([*POSITIONS, *[0] * padding]),
        num_decode_tokens=rows,
        token_to_req=torch.arange(rows, dtype=torch.int32),
        block_table=torch.arange(rows * 100, dtype=torch.int32).view(rows, 100),
        block_size=2,
        slot_mapping=torch.tensor([*range(len(POSITIONS)), *[-1] * padding]),
        width=CAPACITY,
    )


def buffers() -> Buffers:
    return Buffers.allocate(8, CAPACITY)


def test_right_rows_are_right_with_padding_and_after_wider_steps():
    kept = buffers()
    reference.build(step(padding=2), kept)
    assert look(step(padding=2), kept).wrong_rows == ()
    kept.decode[0, 200:] = 7  # behind the row's entries: nobody reads it
    assert look(step(padding=2), kept).wrong_rows == ()


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (MetadataFault.PACKED_STRIDE, (1, 2)),
        (MetadataFault.PACKED_STRIDE_LAST_ROW, (2,)),
        (MetadataFault.NEWEST_ENTRY_MISSING, (0, 1, 2)),
        (MetadataFault.LENGTHS_OFF_BY_ONE, (0, 1, 2)),
    ],
)
def test_wrong_rows_are_named(fault, wrong):
    witness = MetadataWitness()
    broken = with_fault(reference.build, fault, lambda _: 128)
    shorter = step()
    shorter.positions[0] = 16_000
    witness.watch(broken)(shorter, buffers())
    seen = witness.take()
    assert seen is not None
    assert seen.wrong_rows == wrong
    assert witness.take() is None


def test_equal_metadata_has_equal_digests_and_other_metadata_others():
    kept, other = buffers(), buffers()
    reference.build(step(), kept)
    reference.build(step(), other)
    other.decode[1, 7:] = 99  # row 1 has seven entries
    assert look(step(), kept).crc32 == look(step(), other).crc32
    other.decode[1, 6] = 99
    assert look(step(), kept).crc32 != look(step(), other).crc32


def test_a_fault_on_one_rank_leaves_the_others_alone(monkeypatch):
    broken = ranks.on_ranks(
        with_fault(reference.build, MetadataFault.NEWEST_ENTRY_MISSING), reference.build, {1}
    )
    for rank, wrong in ((0, ()), (1, (0, 1, 2))):
        monkeypatch.setattr(ranks, "current_rank", lambda rank=rank: rank)
        kept = buffers()
        broken(step(), kept)
        assert look(step(), kept).wrong_rows == wrong


@pytest.mark.parametrize(("value", "expected"), [("", None), ("1", {1}), ("0,2", {0, 2})])
def test_ranks_are_read(value, expected):
    assert ranks.read_fault_ranks({"DS4_FAULT_RANKS": value}) == expected


@pytest.mark.parametrize("value", ["one", "1,", "-1", "0;1"])
def test_wrong_ranks_are_refused(value):
    with pytest.raises(ValueError, match="DS4_FAULT_RANKS"):
        ranks.read_fault_ranks({"DS4_FAULT_RANKS": value})


def test_looking_is_asked_for():
    assert not wants_metadata({})
    assert wants_metadata({"DS4_STEP_METADATA": "1"})
    with pytest.raises(ValueError, match="DS4_STEP_METADATA"):
        wants_metadata({"DS4_STEP_METADATA": "yes"})


def test_the_step_log_says_what_was_seen(tmp_path):
    path = ranks.rank_log(tmp_path / "steps.jsonl", 3)
    assert path.name == "steps.rank3.jsonl"
    assert ranks.rank_log(path, 0) == path
    recorder = StepRecorder(path, "none")
    kept = buffers()
    with_fault(reference.build, MetadataFault.PACKED_STRIDE_LAST_ROW, lambda _: 128)(step(), kept)
    recorder.record(0.0, StepKind.DECODE, [], 0, metadata=look(step(), kept))
    recorder.record(0.0, StepKind.DECODE, [], 0)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["metadata"]["wrong_rows"] == [2]
    assert "metadata" not in second
