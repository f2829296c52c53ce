"""The fix on invented vLLM modules: packing, right, unknown; and vLLM's calling conventions."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import Batch, Buffers, Dcp, ViewDesign
from ds4_kernels.fix import stride
from ds4_kernels.fix.control import install_metadata_fault
from ds4_kernels.fix.signature import UnrecognisedBuilderError, as_builder, as_vllm_function
from ds4_kernels.fix.stride import (
    RowLayout,
    StrideFixPolicy,
    check_rows,
    install_in_module,
    install_stride_fix,
    probe_views,
)

CPU = torch.device("cpu")


def released(
    positions, compress_ratio, num_decode_tokens, token_to_req_indices, block_table, block_size, slot_mapping,
    global_decode_buffer, decode_lens_buffer, prefill_buffer, max_compressed_tokens=8192,
):  # fmt: skip
    """The parameters of releases 0.20.2 to 0.33.0."""


def forked(
    positions, compress_ratio, num_decode_tokens, actual_num_query_tokens, token_to_req_indices, block_table,
    block_size, slot_mapping, global_decode_buffer, decode_lens_buffer, prefill_buffer,
    max_compressed_tokens=8192, dcp_world_size=1, dcp_rank=0, cp_kv_cache_interleave_size=1,
):  # fmt: skip
    """The parameters of forks with decode context parallelism."""


RIGHT = as_vllm_function(reference.build, ViewDesign.WHOLE_ROW, released)
ADAPTIVE = as_vllm_function(reference.build, ViewDesign.ACTIVE_WIDTH, released)
PACKED = as_vllm_function(
    with_fault(reference.build, MetadataFault.PACKED_STRIDE), ViewDesign.ACTIVE_WIDTH, released
)


class Builder:
    """Stands for vLLM's metadata builder class."""

    def __init__(self, device="cpu", compress_ratio=128):
        self.device, self.compress_ratio = device, compress_ratio
        self.buffers = Buffers.allocate(4, 256)

    def _build_c128a_metadata(self, cm):
        function = sys.modules["vllm.invented"].build_c128a_topk_metadata
        buffers = self.buffers
        return function(
            cm.positions, 128, 2, torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([[3], [5]], dtype=torch.int32), 256, torch.zeros(2, dtype=torch.int64),
            buffers.decode, buffers.lens, buffers.prefill, max_compressed_tokens=256,
        )  # fmt: skip


@pytest.fixture
def module(monkeypatch):
    """Give a maker of modules that look like vLLM's."""

    def make(function) -> ModuleType:
        made = ModuleType("vllm.invented")
        made.build_c128a_topk_metadata = function
        made.MetadataBuilder = type("MetadataBuilder", (Builder,), dict(vars(Builder)))
        monkeypatch.setitem(sys.modules, "vllm.invented", made)
        return made

    return make


def two_rows(function) -> tuple[torch.Tensor, Buffers]:
    batch = Batch(
        positions=torch.tensor([255, 1023]),
        num_decode_tokens=2,
        token_to_req=torch.tensor([0, 1], dtype=torch.int32),
        block_table=torch.tensor([[3], [5]], dtype=torch.int32),
        block_size=256,
        slot_mapping=torch.zeros(2, dtype=torch.int64),
        width=128,
    )
    buffers = Buffers.allocate(4, 256, fill=-77)
    return as_builder(function)(batch, buffers).decode, buffers


@pytest.fixture
def on_reference(monkeypatch):
    """Let the fix build with the reference: Triton's interpreter is not what is tested here."""
    monkeypatch.setattr(stride, "build_on_device", reference.build)


@pytest.mark.parametrize(
    ("function", "layout", "design"),
    [
        (RIGHT, RowLayout.CAPACITY, ViewDesign.WHOLE_ROW),
        (ADAPTIVE, RowLayout.CAPACITY, ViewDesign.ACTIVE_WIDTH),
        (PACKED, RowLayout.PACKED, ViewDesign.WHOLE_ROW),
    ],
)
def test_layouts_are_told_apart_without_a_launch(function, layout, design):
    assert probe_views(function) == (layout, design)


def test_a_packing_builder_is_replaced(module, on_reference):
    vllm = module(PACKED)
    report = install_in_module(vllm, StrideFixPolicy.AUTO)
    assert (report.layout, report.installed) == (RowLayout.PACKED, True)
    assert "vllm.invented.build_c128a_topk_metadata lays out rows at the packed stride: replaced" in str(
        report
    )
    view, buffers = two_rows(vllm.build_c128a_topk_metadata)
    assert view.stride() == (256, 1)
    assert buffers.decode[1, :3].tolist() == [1280, 1281, 1282]


def test_modules_that_imported_the_function_get_the_fix_too(module, on_reference, monkeypatch):
    vllm = module(PACKED)
    user = ModuleType("vllm.user")
    user.build_c128a_topk_metadata = PACKED
    monkeypatch.setitem(sys.modules, "vllm.user", user)
    install_in_module(vllm, StrideFixPolicy.AUTO)
    assert user.build_c128a_topk_metadata is vllm.build_c128a_topk_metadata is not PACKED


@pytest.mark.parametrize("function", [RIGHT, ADAPTIVE])
def test_a_right_builder_is_left_alone_unless_told_otherwise(module, on_reference, function):
    vllm = module(function)
    report = install_in_module(vllm, StrideFixPolicy.AUTO)
    assert vllm.build_c128a_topk_metadata is function
    assert "already right, left as it is" in str(report)
    assert install_in_module(vllm, StrideFixPolicy.ALWAYS).installed
    assert vllm.build_c128a_topk_metadata is not function
    assert probe_views(vllm.build_c128a_topk_metadata) == probe_views(function)


def test_off_looks_at_nothing():
    report = install_stride_fix({"DS4_STRIDE_FIX": "off"})
    assert (report.installed, report.builder) == (False, None)
    assert "nothing was changed" in str(report)


def test_a_wrong_policy_names_the_known_ones():
    with pytest.raises(ValueError, match="DS4_STRIDE_FIX='on' is unknown; known values: auto, always, off"):
        install_stride_fix({"DS4_STRIDE_FIX": "on"})


def test_a_vllm_without_the_function_is_refused(monkeypatch):
    empty = ModuleType("vllm.models.deepseek_v4.sparse_mla")
    for name in stride.BUILDER_MODULES:
        monkeypatch.setitem(sys.modules, name, empty)
    with pytest.raises(UnrecognisedBuilderError, match="DS4_STRIDE_FIX=off serves without looking"):
        install_stride_fix({})


def test_unknown_views_are_refused(module):
    def odd(**given):
        view = torch.empty(0, 64)
        return view, given["decode_lens_buffer"][:0], view

    odd.__signature__ = stride.as_vllm_function(reference.build, ViewDesign.WHOLE_ROW, released).__signature__
    with pytest.raises(UnrecognisedBuilderError, match="not a known layout"):
        install_in_module(module(odd), StrideFixPolicy.AUTO)


def test_unknown_parameters_are_refused(module):
    def renamed(positions, ratio, somewhere_else):
        """A builder of another design."""

    with pytest.raises(UnrecognisedBuilderError, match=r"missing parameters.*unknown ones: .*somewhere_else"):
        install_in_module(module(renamed), StrideFixPolicy.AUTO)


def test_a_module_without_builder_class_is_refused(module):
    vllm = module(RIGHT)
    del vllm.MetadataBuilder
    with pytest.raises(UnrecognisedBuilderError, match="expected one class with _build_c128a_metadata"):
        install_in_module(vllm, StrideFixPolicy.AUTO)


def test_rows_behind_right_views_are_looked_at():
    """Views at the capacity stride over packed rows: only running it shows them."""

    def deceitful(**given):
        PACKED(**given)
        return ADAPTIVE(**{**given, "positions": given["positions"][:0], "num_decode_tokens": 0})

    deceitful.__signature__ = RIGHT.__signature__
    assert probe_views(deceitful)[0] is RowLayout.CAPACITY
    check_rows(RIGHT, CPU)
    with pytest.raises(UnrecognisedBuilderError, match="this server would read wrong entries"):
        check_rows(deceitful, CPU)


def test_the_rows_are_checked_once_on_a_gpu_for_c128a_layers_only(module, monkeypatch):
    checked = []
    monkeypatch.setattr(
        stride, "check_rows", lambda function, device: checked.append((function, device.type))
    )
    vllm = module(RIGHT)
    install_in_module(vllm, StrideFixPolicy.AUTO)
    install_in_module(vllm, StrideFixPolicy.AUTO)  # each process of a server may ask again
    vllm.MetadataBuilder("cpu", 128)
    vllm.MetadataBuilder("cuda", 4)
    assert not checked
    vllm.MetadataBuilder("cuda", 128)
    vllm.MetadataBuilder("cuda", 128)
    assert checked == [(RIGHT, "cuda")]


def test_a_fork_is_called_with_padding_and_dcp():
    function = as_vllm_function(reference.build, ViewDesign.WHOLE_ROW, forked)
    batch = Batch(
        positions=torch.tensor([639, 639, 639]),
        num_decode_tokens=1,
        token_to_req=torch.zeros(3, dtype=torch.int32),
        block_table=torch.tensor([[11, 17]], dtype=torch.int32),
        block_size=2,
        slot_mapping=torch.full((3,), -1),
        width=128,
        num_query_tokens=2,
    )
    buffers = Buffers.allocate(3, 128)
    as_builder(function)(batch, buffers, Dcp(2, 0, 1))
    assert buffers.decode[0, :4].tolist() == [22, 23, 34, -1]
    assert buffers.prefill[:2, :2].tolist() == [[0, 1], [-1, -1]]


def test_a_release_cannot_be_asked_for_dcp():
    none = torch.zeros(0, dtype=torch.int64)
    batch = Batch(none, 0, none.int(), torch.zeros((1, 1), dtype=torch.int32), 2, none, 128)
    with pytest.raises(ValueError, match="dcp world_size: got 2, this function takes only 1"):
        as_builder(RIGHT)(batch, Buffers.allocate(1, 128), Dcp(2, 0, 1))


def test_half_a_set_of_dcp_parameters_is_refused():
    def half(**_):
        """Takes a world size, but no rank."""

    signature = RIGHT.__signature__
    extra = [*signature.parameters.values()]
    extra.append(extra[-1].replace(name="dcp_world_size", default=1))
    half.__signature__ = signature.replace(parameters=extra)
    with pytest.raises(UnrecognisedBuilderError, match="DCP parameters"):
        as_builder(half)


def test_a_control_arm_packs_at_the_longest_context(module):
    """The caller asks for whole rows; a packing release would have taken the active width."""
    vllm = module(RIGHT)
    install_metadata_fault(vllm, MetadataFault.PACKED_STRIDE)
    server = vllm.MetadataBuilder()
    server.buffers.decode.fill_(-77)
    step = SimpleNamespace(positions=torch.tensor([255, 1023]), max_seq_len=1024)
    decode, _, _ = server._build_c128a_metadata(step)
    assert decode.stride() == (128, 1)
    assert server.buffers.decode[0, 128:131].tolist() == [1280, 1281, 1282]
    assert server.buffers.decode[1, 0].item() == -77


def test_a_control_arm_breaks_what_it_is_asked_to(module):
    vllm = module(RIGHT)
    install_metadata_fault(vllm, MetadataFault.NEWEST_ENTRY_MISSING)
    server = vllm.MetadataBuilder()
    step = SimpleNamespace(positions=torch.tensor([255, 1023]), max_seq_len=1024)
    decode, lens, _ = server._build_c128a_metadata(step)
    assert decode.shape == (2, 256)
    assert lens.tolist() == [2, 8]
    assert decode[1, :9].tolist() == [*range(1280, 1287), -1, -1]
