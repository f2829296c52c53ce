"""A bundle that was cut, copied in part or damaged: the file is named, and the exit code is 3."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from qualify.cli.reports import report_command
from qualify.errors import EvidenceError, ExitCode
from qualify.evidence.bundle import MANIFEST, Bundle, seal
from qualify.evidence.recording import read_record
from qualify.judging import judge_bundle
from qualify.rendering import read_material
from qualify.reporting.export import make_export
from qualify.transcript import Arm
from tests.projects import judge

COMPRESSED = ["forced.run1.jsonl.gz", "steps.jsonl.gz", "metrics.jsonl.gz"]


@pytest.fixture
def bundle(served, tmp_path) -> Path:
    """An unsealed copy: in a sealed one the manifest notices first."""
    copy = Path(shutil.copytree(served, tmp_path / served.name))
    (copy / MANIFEST).unlink()
    return copy


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 30] = bytes(byte ^ 0x5A for byte in content[middle : middle + 30])
    path.write_bytes(content)


def check_sum(path: Path) -> None:
    """Only the check sum at the end is wrong."""
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def plain(path: Path) -> None:
    path.write_bytes(b"hi")


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("harm", [cut, spoil, check_sum, plain])
def test_damaged_compressed_file_is_named(bundle, name, harm):
    path = bundle / "arms/candidate" / name
    harm(path)
    with pytest.raises(EvidenceError, match=f"{name}.*: "):
        judge_bundle(Bundle(bundle))


def test_cut_file_is_inconclusive_and_no_interruption(bundle):
    cut(bundle / "arms/candidate/forced.run1.jsonl.gz")
    seal(Bundle(bundle))
    done = judge(bundle)
    assert done.code == ExitCode.INCONCLUSIVE
    assert "arms/candidate/forced.run1.jsonl.gz: is damaged or was cut" in done.err
    assert "interrupted" not in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("field", ["token_ids", "top_ids", "computed_tokens"])
def test_number_beyond_what_arrays_hold_is_named_with_its_line(bundle, field):
    path = bundle / "arms/candidate" / ("steps.jsonl.gz" if field == "computed_tokens" else COMPRESSED[0])
    text = gzip.decompress(path.read_bytes())
    at = text.index(f'"{field}":'.encode()) + len(field) + 3
    while not text[at : at + 1].isdigit():
        at += 1
    path.write_bytes(gzip.compress(text[:at] + b"9" * 12 + text[at:]))
    with pytest.raises(EvidenceError, match=rf"{path.name}:1: not a.*<= 1073741824"):
        judge_bundle(Bundle(bundle))


@pytest.mark.parametrize("harm", ["missing", "wrong"])
def test_policy_of_a_bundle_is_evidence_and_no_usage(bundle, harm):
    policy = bundle / "inputs/policy.yaml"
    if harm == "missing":
        policy.unlink()
    else:
        policy.write_text("format: qualify/policy/1\nname: [x\n")
    seal(Bundle(bundle))
    done = judge(bundle)
    assert done.code == ExitCode.INCONCLUSIVE
    assert f"{policy}" in done.err


def test_one_damaged_bundle_costs_the_others_no_report(bundle, served, tmp_path):
    (bundle / "inputs/policy.yaml").unlink()
    seal(Bundle(bundle))
    whole = Path(shutil.copytree(served, tmp_path / "whole"))
    done = CliRunner().invoke(report_command, [str(bundle), str(whole)], standalone_mode=False)
    assert done.return_value == ExitCode.INCONCLUSIVE, done.output
    assert (tmp_path / "whole.reports/report.html").exists()


def test_what_nvidia_smi_and_the_kernel_wrote_need_not_be_text(bundle):
    arm = bundle / "arms/candidate"
    (arm / "gpu.csv").write_bytes(b"timestamp, index\n\xff\xfe, 0\n")
    (arm / "gpu-errors.log").write_bytes(b"NVRM: \xff\xfe\n")
    seal(Bundle(bundle))
    (line,) = read_record(Bundle(bundle)).probes[Arm.CANDIDATE].gpu_errors
    assert line.startswith("NVRM: ")
    exported = make_export(read_material(Bundle(bundle)))
    assert exported.gpu_ids == ("0",)


def test_an_unsealed_bundle_is_never_qualified(served, bundle):
    assert judge(served).code == ExitCode.QUALIFIED
    done = judge(bundle)
    assert done.code == ExitCode.INCONCLUSIVE
    assert "was never sealed, so nothing says that it is whole" in done.err
    assert done.out == ""
