"""Sizes, views and argument checks."""

import pytest
import torch
from ds4_kernels.c128a.layout import (
    Batch,
    Buffers,
    ViewDesign,
    active_width,
    result_views,
    validate,
)


def batch(**changes) -> Batch:
    given = {
        "positions": torch.tensor([255, 1023, 300]),
        "num_decode_tokens": 2,
        "token_to_req": torch.tensor([0, 1, 0], dtype=torch.int32),
        "block_table": torch.tensor([[3], [5]], dtype=torch.int32),
        "block_size": 256,
        "slot_mapping": torch.zeros(3, dtype=torch.int64),
        "width": 128,
    }
    return Batch(**{**given, **changes})


# the contract's table "when the defect can and cannot show"
@pytest.mark.parametrize(
    ("max_model_len", "capacity", "longest_that_shows"),
    [
        (16_384, 128, None),
        (32_768, 256, 16_511),
        (131_072, 1_024, 65_663),
        (262_144, 2_048, 131_199),
        (1_048_576, 8_192, 524_415),
    ],
)
def test_the_window_in_which_the_packed_width_differs(max_model_len, capacity, longest_that_shows):
    if longest_that_shows is None:
        assert active_width(max_model_len, capacity) == capacity
        return
    assert active_width(longest_that_shows, capacity) < capacity
    assert active_width(longest_that_shows + 1, capacity) == capacity


@pytest.mark.parametrize(
    ("longest", "width"), [(0, 128), (1, 128), (16_511, 128), (16_512, 256), (33_024, 512)]
)
def test_active_width_is_a_power_of_two_from_128_on(longest, width):
    assert active_width(longest, 8192) == width


def test_views_keep_the_capacity_stride_in_both_designs():
    buffers = Buffers.allocate(4, 256)
    whole = result_views(batch(), buffers, ViewDesign.WHOLE_ROW)
    active = result_views(batch(), buffers, ViewDesign.ACTIVE_WIDTH)
    assert (whole.decode.shape, active.decode.shape) == ((2, 256), (2, 128))
    assert whole.prefill.shape == active.prefill.shape == (1, 128)
    for view in (whole.decode, active.decode, whole.prefill):
        assert view.stride() == (256, 1)
    assert whole.decode.data_ptr() == buffers.decode.data_ptr()


def test_a_slice_of_a_wider_block_table_is_accepted():
    wide = torch.zeros((2, 8), dtype=torch.int32)
    validate(batch(block_table=wide[:, :3]), Buffers.allocate(4, 256))


def test_a_table_whose_columns_are_apart_is_refused():
    table = torch.zeros((2, 8), dtype=torch.int32)[:, ::2]
    with pytest.raises(ValueError, match="block_table column stride: got 2, expected 1"):
        validate(batch(block_table=table), Buffers.allocate(4, 256))


def test_a_capacity_that_is_no_multiple_of_128_is_refused():
    with pytest.raises(ValueError, match="capacity: got 200, expected a multiple of 128"):
        validate(batch(), Buffers.allocate(4, 200))


def test_the_number_of_query_tokens_defaults_to_all():
    assert batch().query_tokens == 3
    assert batch(num_query_tokens=0).query_tokens == 0
