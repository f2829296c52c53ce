"""A full disk leaves nothing half written, and the message names the file."""

import contextlib
import resource
import subprocess
import sys

import pytest

from qualify.errors import MachineryError, UsageError
from qualify.evidence.bundle import Bundle, compress
from qualify.evidence.signature import generate_key
from tests.projects import ENVIRONMENT

LARGE = b"".join(b"%08x\n" % (number * 2654435761 % 2**32) for number in range(2000))


@contextlib.contextmanager
def little_room(size):
    """No file may grow beyond some bytes: writing ends as it does on a full disk, in mid-file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(directory):
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_a_file_is_whole_or_what_it_was(tmp_path):
    bundle = Bundle(tmp_path)
    bundle.write_bytes("a/x.json", b"old")
    said = r"a/x\.json: cannot be written: File too large\n  Make room"
    with pytest.raises(MachineryError, match=said), little_room(4096):
        bundle.write_bytes("a/x.json", LARGE)
    assert names(tmp_path) == ["x.json"]
    assert (tmp_path / "a/x.json").read_bytes() == b"old"


def test_what_cannot_be_packed_stays_plain(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(LARGE)
    with pytest.raises(MachineryError, match=r"x\.jsonl\.gz: cannot be written"), little_room(1024):
        compress(path)
    assert names(tmp_path) == ["x.jsonl"]


def test_half_a_pair_of_keys_is_no_pair(tmp_path):
    with pytest.raises(MachineryError, match="key: cannot be written"), little_room(10):
        generate_key(tmp_path / "key", tmp_path / "key.pub")
    # room for the private key alone
    with pytest.raises(UsageError, match="folder"):
        generate_key(tmp_path / "key", tmp_path / "nowhere/key.pub")
    assert names(tmp_path) == []


def test_keygen_works_once_there_is_room(tmp_path):
    words = [sys.executable, "-m", "qualify", "keygen", str(tmp_path / "key")]
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    limited += "os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], env=ENVIRONMENT, check=False, capture_output=True, timeout=60
    )
    assert done.returncode == 4
    assert b"key: cannot be written: File too large" in done.stderr
    assert subprocess.run(words, env=ENVIRONMENT, check=False, timeout=60).returncode == 0
