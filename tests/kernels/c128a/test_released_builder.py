"""Another release's builder in an invented vLLM: taken from its file, seen by the fix and by faults."""

import hashlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault
from ds4_kernels.c128a.layout import Buffers, ViewDesign
from ds4_kernels.fix import stride
from ds4_kernels.fix.control import install_metadata_fault
from ds4_kernels.fix.released_builder import (
    ReleasedBuilder,
    install_released_builder,
    read_released_builder,
)
from ds4_kernels.fix.signature import UnrecognisedBuilderError, as_vllm_function
from ds4_kernels.fix.stride import RowLayout, StrideFixPolicy, install_in_module

PARAMETERS = (
    "positions, compress_ratio, num_decode_tokens, token_to_req_indices, block_table, block_size, "
    "slot_mapping, global_decode_buffer, decode_lens_buffer, prefill_buffer, max_compressed_tokens=8192"
)
# what 0.27 does: the caller asks for the active width, the function packs to what it is asked for
RELEASE = f"""
from dataclasses import dataclass
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import ViewDesign
from ds4_kernels.fix.signature import as_vllm_function

def like({PARAMETERS}): ...

@dataclass
class Metadata:
    block_size: int

class MetadataBuilder:
    def _build_c128a_metadata(self, cm):
        width = min(max(triton.next_power_of_2(cm.max_seq_len // 128), _ALIGNMENT), 256)
        return build_c128a_topk_metadata(
            cm.positions, 128, 2, torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([[3], [5]], dtype=torch.int32), 256, torch.zeros(2, dtype=torch.int64),
            self.buffers.decode, self.buffers.lens, self.buffers.prefill, max_compressed_tokens=width,
        )

build_c128a_topk_metadata = as_vllm_function(
    with_fault(reference.build, MetadataFault.PACKED_STRIDE), ViewDesign.ACTIVE_WIDTH, like
)
"""
STEP = SimpleNamespace(positions=torch.tensor([255, 1023]), max_seq_len=1024)


def right(
    positions, compress_ratio, num_decode_tokens, token_to_req_indices, block_table, block_size, slot_mapping,
    global_decode_buffer, decode_lens_buffer, prefill_buffer, max_compressed_tokens=8192,
):  # fmt: skip
    """The parameters of every release."""


@pytest.fixture
def vllm(monkeypatch) -> ModuleType:
    """A module that lays out its rows right, with the names that the release's method uses."""
    made = ModuleType("vllm.invented")
    made.build_c128a_topk_metadata = as_vllm_function(reference.build, ViewDesign.WHOLE_ROW, right)
    made.triton = SimpleNamespace(next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length())
    made.torch, made._ALIGNMENT = torch, 128

    def init(self):
        self.device, self.compress_ratio, self.buffers = "cpu", 128, Buffers.allocate(4, 256, fill=-77)

    made.MetadataBuilder = type("MetadataBuilder", (), {"__init__": init, "_build_c128a_metadata": None})
    monkeypatch.setitem(sys.modules, "vllm.invented", made)
    return made


@pytest.fixture
def released(tmp_path):
    """Give a maker of a release's file."""

    def make(text: str = RELEASE) -> ReleasedBuilder:
        path = tmp_path / "sparse_mla.py"
        path.write_text(text)
        return ReleasedBuilder(path, hashlib.sha256(path.read_bytes()).hexdigest())

    yield make
    sys.modules.pop("ds4_kernels_released_builder", None)


def rows(vllm: ModuleType) -> torch.Tensor:
    server = vllm.MetadataBuilder()
    server._build_c128a_metadata(STEP)
    return server.buffers.decode


def test_the_releases_own_rows_are_built(vllm, released):
    install_released_builder(vllm, released())
    decode = rows(vllm)
    assert decode[0, 128:130].tolist() == [1280, 1281]  # row 1, packed behind row 0
    assert decode[1, 0] == -77
    assert stride.probe_views(vllm.build_c128a_topk_metadata)[0] is RowLayout.PACKED


def test_modules_that_imported_the_installed_function_get_the_releases(vllm, released, monkeypatch):
    user = ModuleType("vllm.user")
    user.build_c128a_topk_metadata = vllm.build_c128a_topk_metadata
    monkeypatch.setitem(sys.modules, "vllm.user", user)
    install_released_builder(vllm, released())
    assert user.build_c128a_topk_metadata is vllm.build_c128a_topk_metadata


def test_the_fix_replaces_it_and_a_fault_breaks_the_fixed_one(vllm, released, monkeypatch):
    monkeypatch.setattr(stride, "build_on_device", reference.build)
    install_released_builder(vllm, released())
    assert install_in_module(vllm, StrideFixPolicy.AUTO).installed
    assert rows(vllm)[1, :2].tolist() == [1280, 1281]
    install_metadata_fault(vllm, MetadataFault.NEWEST_ENTRY_MISSING)
    assert rows(vllm)[0, :3].tolist() == [768, -1, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines no build_c128a_topk_metadata"),
        ("import vllm.not_in_this_release", "cannot be executed beside the installed vLLM"),
        (RELEASE.replace("_ALIGNMENT", "_PAD"), "uses _PAD, which the installed vllm.invented lacks"),
        (RELEASE + "def build_c128a_topk_metadata(positions): ...", "has other parameters than that of"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_nothing_is_changed(vllm, released, text, message):
    before = dict(vars(vllm)), dict(vars(vllm.MetadataBuilder))
    with pytest.raises(UnrecognisedBuilderError, match=message):
        install_released_builder(vllm, released(text))
    assert (dict(vars(vllm)), dict(vars(vllm.MetadataBuilder))) == before


def test_the_file_is_pinned_by_its_digest(released):
    known = released()
    wanted = {"DS4_RELEASED_BUILDER": str(known.path), "DS4_RELEASED_BUILDER_SHA256": known.sha256}
    assert read_released_builder(wanted) == known
    assert read_released_builder({}) is None
    known.path.write_text(RELEASE + "\n")
    with pytest.raises(ValueError, match=f"DS4_RELEASED_BUILDER_SHA256 says {known.sha256}"):
        read_released_builder(wanted)
    known.path.unlink()
    with pytest.raises(ValueError, match="no such file; `make contracts-released"):
        read_released_builder(wanted)


@pytest.mark.parametrize("name", ["DS4_RELEASED_BUILDER", "DS4_RELEASED_BUILDER_SHA256"])
def test_one_variable_alone_is_refused(name):
    with pytest.raises(ValueError, match="belong together: set both or none"):
        read_released_builder({name: "x"})
