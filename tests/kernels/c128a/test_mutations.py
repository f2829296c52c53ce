"""The suite turns red for each fault of the catalogue, and for an implementation without the stride."""

from pathlib import Path

import ds4_kernels.c128a
import pytest
from ds4_kernels.c128a.faulty import MetadataFault

from .suite import run_suite

SOURCES = Path(ds4_kernels.c128a.__file__).parent

# which checks must catch each fault; argument checks do not count
CAUGHT_BY = {
    MetadataFault.PACKED_STRIDE: ("1 stride", "2 active prefix", "5 replay"),
    MetadataFault.PACKED_STRIDE_LAST_ROW: ("2 active prefix", "5 replay"),
    MetadataFault.PACKED_STRIDE_EVERY_8TH_STEP: ("2 active prefix", "5 replay"),
    MetadataFault.STALE_TAIL: ("0 numbers", "2 active prefix"),
    MetadataFault.LENGTHS_OFF_BY_ONE: ("0 numbers", "2 active prefix", "5 replay"),
    MetadataFault.NEIGHBOUR_BLOCK_TABLE: ("2 active prefix", "5 replay"),
    MetadataFault.NEWEST_ENTRY_MISSING: ("0 numbers", "2 active prefix", "5 replay"),
    MetadataFault.WRONG_DCP_OWNER: (
        "0 numbers: two dcp ranks",
        "2 active prefix: memory is exact on every dcp",
    ),
}


@pytest.mark.parametrize("fault", MetadataFault, ids=lambda fault: fault.value)
def test_each_fault_is_caught(tmp_path, fault):
    arguments = ("--subject", "reference", "--fault", fault.value, "--examples", "10")
    run = run_suite(tmp_path, *arguments, "--only", "numbers or stride or prefix or replay")
    assert run.code == 1
    for check in CAUGHT_BY[fault]:
        assert any(failed.startswith(check) for failed in run.failed), (
            f"{check} did not catch it: {run.failed}"
        )


def test_the_same_checks_pass_without_a_fault(tmp_path):
    run = run_suite(
        tmp_path,
        "--subject",
        "reference",
        "--examples",
        "20",
        "--only",
        "numbers or stride or prefix or replay",
    )
    assert run.code == 0, run.output


@pytest.mark.parametrize(
    ("module", "right", "packed"),
    [
        (
            "reference",
            "buffers.decode[token, : batch.width] = row",
            "buffers.decode.view(-1)[token * batch.width :][: batch.width] = row",
        ),
        (
            "triton_kernel",
            "decode + token.to(tl.int64) * capacity + columns",
            "decode + token.to(tl.int64) * width + columns",
        ),
        ("triton_kernel", "prefill + row * capacity + columns", "prefill + row * width + columns"),
        ("layout", "decode[:, : batch.width],", "decode.view(-1, batch.width)[: batch.num_decode_tokens],"),
    ],
)
def test_an_implementation_without_the_stride_is_caught(tmp_path, module, right, packed):
    source = (SOURCES / f"{module}.py").read_text(encoding="utf-8")
    assert source.count(right) == 1
    (tmp_path / "mutant.py").write_text(source.replace(right, packed), encoding="utf-8")
    subject = "mutant:build"
    if module == "layout":  # the views: a reference that takes them from the mutant
        reference = (SOURCES / "reference.py").read_text(encoding="utf-8")
        imported = "from ds4_kernels.c128a.layout import ("
        mutant = reference.replace(imported, "from mutant import result_views\n" + imported)
        (tmp_path / "with_mutant.py").write_text(mutant.replace("    result_views,\n", ""), encoding="utf-8")
        subject = "with_mutant:build"
    only = "numbers or stride or memory_is_exact or reads_as_fresh"
    run = run_suite(tmp_path, "--subject", subject, "--examples", "8", "--only", only, python_path=tmp_path)
    assert run.code == 1, run.output
    assert run.failed
