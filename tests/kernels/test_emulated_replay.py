"""Emulated replay: what the captured read gives after each build, right and with each fault put in."""

import pytest
import torch
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.layout import Batch, Buffers
from ds4_kernels.emulated_replay import (
    AbortUnderLoad,
    EmulatedReplay,
    ReplayMode,
    ReplaySettings,
    builder_for,
    read_settings,
)
from ds4_kernels.faults import CATALOGUE
from hypothesis import given
from hypothesis import strategies as st

CAPACITY, ROWS, PAGE = 256, 16, 2
CONFIRMED = {"DS4_FAULT_CONFIRM": "yes-break-this-server"}


def batch_of(contexts: list[int], first_page: int = 0) -> Batch:
    """One decode token a request, at the end of its context; each request has pages of its own."""
    rows = len(contexts)
    width = max(128, min(CAPACITY, 1 << (max(max(contexts) // 128, 1) - 1).bit_length()))
    return Batch(
        positions=torch.tensor(contexts) - 1,
        num_decode_tokens=rows,
        token_to_req=torch.arange(rows, dtype=torch.int32),
        block_table=(first_page + torch.arange(rows * 130, dtype=torch.int32)).view(rows, 130),
        block_size=PAGE,
        slot_mapping=torch.zeros(rows, dtype=torch.int64),
        width=width,
    )


def expected_rows(batch: Batch) -> list[list[int]]:
    """What each row must read, from the contract's formula."""
    rows = []
    for row, position in enumerate(batch.positions.tolist()):
        pages = batch.block_table[row].tolist()
        rows.append([pages[j // PAGE] * PAGE + j % PAGE for j in range((position + 1) // 128)])
    return rows


def read(replay: EmulatedReplay, batch: Batch, only_decodes: bool = True) -> list[list[int]]:
    slots, lens = replay.step(batch, only_decodes)
    return [slots[row, : int(length)].tolist() for row, length in enumerate(lens)]


def replay_with(name: str | None) -> EmulatedReplay:
    builder = builder_for(CATALOGUE[name] if name else None)
    return EmulatedReplay(Buffers.allocate(ROWS, CAPACITY, fill=-77), builder)


SHORT = [300, 1500, 130, 2900]
WIDE = [20_000, 17_000, 20_000, 18_000]  # more than 128 entries: the active width is the capacity


def test_buffers_start_at_minus_one():
    buffers = Buffers.allocate(ROWS, CAPACITY, fill=-77)
    EmulatedReplay(buffers, reference.build)
    assert (buffers.decode == -1).all()


@given(
    st.lists(
        st.lists(st.integers(min_value=1, max_value=32_768), min_size=1, max_size=ROWS),
        min_size=1,
        max_size=6,
    )
)
def test_the_right_builder_reads_right_after_any_history(history):
    replay = replay_with(None)
    for step, contexts in enumerate(history):
        batch = batch_of(contexts, first_page=step * 10_000)
        assert read(replay, batch) == expected_rows(batch)
        assert replay.rows_replayed == len(contexts)


def test_packed_stride_leaves_row_0_right_and_hits_later_rows():
    replay, batch = replay_with("packed-stride"), batch_of(SHORT)
    rows, right = read(replay, batch), expected_rows(batch)
    assert rows[0] == right[0]
    assert all(rows[row] != right[row] for row in range(1, 4))


def test_packed_stride_is_harmless_outside_its_window():
    replay = replay_with("packed-stride")
    for contexts in ([1500], WIDE):
        batch = batch_of(contexts)
        assert read(replay, batch) == expected_rows(batch)


def test_stale_history_hides_packed_stride():
    """After a wide step with the same pages rows that no packed row lands on still read right entries."""
    replay, batch = replay_with("packed-stride"), batch_of(SHORT)
    read(replay, batch_of(WIDE))
    rows, right = read(replay, batch), expected_rows(batch)
    hidden = [row for row in range(1, 4) if rows[row] == right[row]]
    assert hidden == [2, 3]  # packed rows 2 and 3 land in row 1


def test_history_of_other_pages_does_not_hide_it():
    replay, batch = replay_with("packed-stride"), batch_of(SHORT)
    read(replay, batch_of(WIDE, first_page=5000))
    rows, right = read(replay, batch), expected_rows(batch)
    assert [row for row in range(4) if rows[row] == right[row]] == [0]


def test_a_step_with_prefills_is_not_replayed_and_reads_the_builders_view():
    replay, batch = replay_with("packed-stride"), batch_of(SHORT)
    assert read(replay, batch, only_decodes=False) == expected_rows(batch)
    assert replay.rows_replayed == 0


def test_a_step_without_decodes_reads_nothing():
    replay = replay_with("packed-stride-last-row")
    batch = batch_of([300])
    empty = Batch(
        batch.positions[:0], 0, batch.token_to_req, batch.block_table, PAGE, batch.slot_mapping, 128
    )
    assert read(replay, empty, only_decodes=False) == []
    assert replay.rows_replayed == 0


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_packed_last_row_hits_the_last_row_only(rows):
    replay, batch = replay_with("packed-stride-last-row"), batch_of(SHORT[:rows])
    got, right = read(replay, batch), expected_rows(batch)
    assert got[:-1] == right[:-1]
    assert got[-1] != right[-1]


def test_packed_last_row_spares_a_single_row():
    replay, batch = replay_with("packed-stride-last-row"), batch_of([1500])
    assert read(replay, batch) == expected_rows(batch)


def test_packed_every_8th_step():
    replay = replay_with("packed-stride-every-8th-step")
    wrong = []
    for step in range(1, 25):
        batch = batch_of(SHORT, first_page=step * 1000)
        if read(replay, batch) != expected_rows(batch):
            wrong.append(step)
    assert wrong == [8, 16, 24]


def test_stale_tail_keeps_old_columns_but_reads_right():
    buffers = Buffers.allocate(ROWS, CAPACITY)
    replay = EmulatedReplay(buffers, builder_for(CATALOGUE["stale-tail"]))
    read(replay, batch_of([2900, 2900]))
    batch = batch_of([300, 300])
    assert read(replay, batch) == expected_rows(batch)
    assert (buffers.decode[:2, 2:22] >= 0).all()  # the contract asks for -1 there


def test_lengths_off_by_one_drops_the_newest_entry_of_each_row():
    batch = batch_of([*SHORT, 100])
    assert read(replay_with("lengths-off-by-one"), batch) == [row[:-1] for row in expected_rows(batch)]


def test_newest_entry_missing_reads_minus_one_in_its_place():
    batch = batch_of([*SHORT, 100])
    expected = [[*row[:-1], -1] if row else [] for row in expected_rows(batch)]
    assert read(replay_with("newest-entry-missing"), batch) == expected


def test_neighbour_block_table_reads_the_next_rows_pages():
    batch = batch_of(SHORT)
    shifted = Batch(**{**vars(batch), "block_table": batch.block_table.roll(-1, 0)})
    assert read(replay_with("neighbour-block-table"), batch) == expected_rows(shifted)
    assert expected_rows(shifted) != expected_rows(batch)


def test_padding_rows_read_nothing():
    batch = batch_of(SHORT)
    batch.slot_mapping[3] = -1
    assert read(replay_with(None), batch)[3] == []


@pytest.mark.parametrize("name", [n for n, f in CATALOGUE.items() if f.in_metadata])
def test_no_fault_writes_beyond_the_buffers(name):
    memory = torch.full((ROWS * CAPACITY + 512,), -77, dtype=torch.int32)
    decode = memory[256 : 256 + ROWS * CAPACITY].view(ROWS, CAPACITY)
    spare = Buffers.allocate(ROWS, CAPACITY)
    replay = EmulatedReplay(Buffers(decode, spare.lens, spare.prefill), builder_for(CATALOGUE[name]))
    for contexts in ([2900] * ROWS, [20_000] * ROWS, [300]):
        for _ in range(8):
            read(replay, batch_of(contexts))
    assert (memory[:256] == -77).all()
    assert (memory[-256:] == -77).all()


class TestSettings:
    def test_fresh_is_the_default(self):
        settings = read_settings({})
        assert settings == ReplaySettings(ReplayMode.FRESH, None, 4, 20)
        assert settings.mode.label == "none"

    def test_emulated(self):
        settings = read_settings({"DS4_REPLAY": "emulated"})
        assert settings.mode is ReplayMode.EMULATED
        assert settings.mode.label == "emulated replay"
        assert builder_for(settings.fault) is reference.build

    def test_control(self):
        settings = read_settings({"DS4_REPLAY": "emulated", "DS4_FAULT": "packed-stride", **CONFIRMED})
        assert settings.fault is CATALOGUE["packed-stride"]
        assert builder_for(settings.fault) is not reference.build

    def test_an_unknown_mode_is_refused(self):
        with pytest.raises(ValueError, match=r"DS4_REPLAY='capacity': expected one of fresh, emulated"):
            read_settings({"DS4_REPLAY": "capacity"})

    def test_a_metadata_fault_that_could_not_act_is_refused(self):
        with pytest.raises(ValueError, match="DS4_REPLAY=emulated"):
            read_settings({"DS4_FAULT": "packed-stride", **CONFIRMED})

    def test_abort_under_load_needs_no_replay(self):
        environment = {
            "DS4_FAULT": "abort-under-load",
            "DS4_FAULT_ROWS": "7",
            "DS4_FAULT_STEPS": "3",
            **CONFIRMED,
        }
        settings = read_settings(environment)
        assert (settings.abort_rows, settings.abort_steps) == (7, 3)
        assert builder_for(settings.fault) is reference.build

    @pytest.mark.parametrize("value", ["0", "-1", "few", "1.5", ""])
    def test_wrong_numbers_are_refused(self, value):
        with pytest.raises(ValueError, match="DS4_FAULT_ROWS"):
            read_settings({"DS4_FAULT_ROWS": value})


def test_abort_counts_loaded_decode_steps_only():
    aborted = []
    fault = AbortUnderLoad(rows=4, steps=3, abort=lambda: aborted.append(True))
    for decode_rows, only_decodes in ((4, True), (3, True), (8, False), (5, True)):
        fault.step(decode_rows, only_decodes)
    assert not aborted
    fault.step(4, True)
    assert aborted
