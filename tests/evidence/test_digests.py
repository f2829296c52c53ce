"""Digests: what they bind to, and what changes them."""

import sys
import venv
from pathlib import Path

import pytest

from qualify.errors import UsageError
from qualify.evidence.digests import (
    canonical_json,
    machine,
    read_distributions,
    sha256_directory,
    sha256_value,
)


def test_canonical_json_ignores_the_order_of_keys():
    assert canonical_json({"b": 1.5, "a": (1, "x")}) == canonical_json({"a": [1, "x"], "b": 1.5})
    assert sha256_value({"a": 1}) != sha256_value({"a": 2})


def test_directory_digest_sees_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    first = sha256_directory(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    second = sha256_directory(tmp_path)
    (tmp_path / "b").write_text("2")
    assert len({first, second, sha256_directory(tmp_path)}) == 3


def test_missing_interpreter(tmp_path):
    with pytest.raises(UsageError, match="does not exist") as caught:
        read_distributions(tmp_path / "python")
    assert "make install-serving" in str(caught.value)


def test_broken_interpreter(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="interpreter failed"):
        read_distributions(broken)


def install(site: Path, name: str, code: str, recorded: str) -> None:
    """A distribution as pip would leave it, its code possibly edited afterwards."""
    import base64
    import hashlib

    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded.encode()).digest()).rstrip(b"=").decode()
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"code.py,sha256={digest},{len(recorded)}\n{info.name}/RECORD,,\n")
    (site / "code.py").write_text(code)


def test_edited_python_file_changes_the_digest_and_is_named(tmp_path):
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env/bin/python"
    site = tmp_path / "env/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    install(site, "ds4-kernels", "stride = capacity\n", "stride = capacity\n")
    clean = read_distributions(python)
    assert clean.modified == ()
    assert clean.version("vllm", "ds4-kernels") == "ds4-kernels 1.0"
    install(site, "ds4-kernels", "stride = width\n", "stride = capacity\n")
    edited = read_distributions(python)
    assert [path for path, _ in edited.modified] == ["code.py"]
    assert edited.digest != clean.digest


def test_machine_has_no_name():
    import socket

    assert socket.gethostname() not in str(machine())
