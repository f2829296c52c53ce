"""Bundles: sealed, verified, and closed to whatever was changed afterwards."""

import json
from dataclasses import dataclass

import pytest

from qualify.errors import EvidenceError
from qualify.evidence.bundle import MANIFEST, Bundle, compress, seal, verify
from qualify.transcript import Arm, Decode, RunKey


@pytest.fixture
def bundle(tmp_path):
    bundle = Bundle(tmp_path / "bundle")
    bundle.write("run.json", {"status": "complete"})
    bundle.write_bytes("arms/baseline/free.run1.jsonl", b'{"a":1}\n{"b":2}\n')
    bundle.write_bytes("arms/baseline/server.log", b"log\n")
    seal(bundle)
    return bundle


def test_sealed_bundle_verifies(bundle):
    verify(bundle)


def test_seal_is_deterministic(bundle, tmp_path):
    other = Bundle(tmp_path / "other")
    other.write_bytes("arms/baseline/server.log", b"log\n")
    other.write_bytes("arms/baseline/free.run1.jsonl", b'{"a":1}\n{"b":2}\n')
    other.write("run.json", {"status": "complete"})
    seal(other)
    assert (other.root / MANIFEST).read_bytes() == (bundle.root / MANIFEST).read_bytes()


def test_transcripts_are_found_compressed_and_not(bundle, tmp_path):
    key = RunKey(Arm.BASELINE, Decode.FREE, 1)
    assert bundle.transcripts(Arm.BASELINE)[key].name == "free.run1.jsonl.gz"
    fresh = Bundle(tmp_path / "fresh")
    fresh.write_bytes("arms/candidate/forced.run12.jsonl", b"")
    assert list(fresh.transcripts(Arm.CANDIDATE)) == [RunKey(Arm.CANDIDATE, Decode.FORCED, 12)]


def test_what_is_begun_is_no_transcript(tmp_path):
    """A full disk or SIGKILL leaves ``.partial`` beside the whole file."""
    bundle = Bundle(tmp_path)
    whole = bundle.write_bytes("arms/baseline/free.run1.jsonl", b"")
    bundle.write_bytes("arms/baseline/free.run1.jsonl.gz.partial", b"\x1f\x8b")
    assert bundle.transcripts(Arm.BASELINE) == {RunKey(Arm.BASELINE, Decode.FREE, 1): whole}


@pytest.mark.parametrize("name", ["free.runX.jsonl", "odd.run1.jsonl", "free.run1.more.jsonl.gz"])
def test_transcript_of_no_run_is_refused(tmp_path, name):
    Bundle(tmp_path).write_bytes(f"arms/baseline/{name}", b"")
    with pytest.raises(EvidenceError, match=name):
        Bundle(tmp_path).transcripts(Arm.BASELINE)


@pytest.mark.parametrize("name", ["run.json", "arms/baseline/server.log", "arms/baseline/free.run1.jsonl.gz"])
def test_one_changed_byte_is_noticed(bundle, name):
    content = bytearray((bundle.root / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle.root / name).write_bytes(bytes(content))
    with pytest.raises(EvidenceError, match=f"{name}: was changed"):
        verify(bundle)


def test_missing_and_extra_files_are_noticed(bundle):
    (bundle.root / "run.json").unlink()
    (bundle.root / "arms/extra.json").write_text("{}")
    with pytest.raises(EvidenceError, match=r"run.json: is missing.*arms/extra.json: is not in the manifest"):
        verify(bundle)


def test_link_is_no_file(bundle, tmp_path):
    outside = tmp_path / "outside.log"
    outside.write_bytes(b"log\n")
    (bundle.root / "arms/baseline/server.log").unlink()
    (bundle.root / "arms/baseline/server.log").symlink_to(outside)
    with pytest.raises(EvidenceError, match=r"server\.log: is missing"):
        verify(bundle)


def test_linked_directory_is_no_part_of_a_bundle(bundle, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/findings.json").write_text("[]")
    (bundle.root / "inspect").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match="inspect: is not in the manifest"):
        verify(bundle)
    with pytest.raises(EvidenceError, match="inspect: is no file of its own"):
        seal(bundle)


def test_directory_moved_out_and_linked_back_is_refused(bundle, tmp_path):
    (bundle.root / "arms/baseline").rename(tmp_path / "moved")
    (bundle.root / "arms/baseline").symlink_to(tmp_path / "moved")
    with pytest.raises(EvidenceError, match=r"arms/baseline/server\.log: is missing"):
        verify(bundle)


def test_linked_bundle_is_a_bundle(bundle, tmp_path):
    (tmp_path / "newest").symlink_to(bundle.root)
    verify(Bundle(tmp_path / "newest"))


@pytest.mark.parametrize("name", ["../outside.log", "/etc/passwd", "arms/../../outside.log"])
def test_manifest_cannot_lead_out_of_the_bundle(bundle, name):
    files = json.loads((bundle.root / MANIFEST).read_bytes()) | {name: "0" * 64}
    (bundle.root / MANIFEST).write_text(json.dumps(files))
    with pytest.raises(EvidenceError, match="leads out of the bundle"):
        verify(bundle)


def test_unsealed_bundle_does_not_verify(tmp_path):
    with pytest.raises(EvidenceError, match=MANIFEST):
        verify(Bundle(tmp_path))


@dataclass(frozen=True)
class Thing:
    number: int


def test_read_says_what_is_wrong(bundle):
    bundle.write("thing.json", {"number": "one"})
    with pytest.raises(
        EvidenceError, match=r"thing.json: is not what this version of qualify writes.*number"
    ):
        bundle.read("thing.json", Thing)
    bundle.write_bytes("deep.json", b'{"x":' + b"[" * 5000)
    with pytest.raises(EvidenceError, match=r"deep\.json: is not what"):
        bundle.read("deep.json", Thing)
    with pytest.raises(EvidenceError, match=r"nothing\.json: cannot be read"):
        bundle.read("nothing.json", Thing)


def test_compress_gives_the_same_bytes_whenever(tmp_path):
    packed = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "x.jsonl"
        path.write_bytes(b"line\n" * 100)
        compress(path)
        assert not path.exists()
        packed.append((tmp_path / name / "x.jsonl.gz").read_bytes())
    assert packed[0] == packed[1]
