"""Composition locks: patch and tree are checked, pull requests are carried."""

import json
import subprocess
from pathlib import Path

import pytest

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_bytes
from qualify.images.composition import read_composition

PATCH = b"--- a/vllm/x.py\n+++ b/vllm/x.py\n"
HEAD = "a" * 40


def write(folder: Path, **result: str) -> Path:
    content = {
        "base": {"repository": "https://example.org/vllm.git", "ref": "main", "commit": "b" * 40, "more": 1},
        "pull_requests": [{"number": 12, "head": HEAD}, {"number": 7, "head": "c" * 40}],
        "result": {"tree": "d" * 40, "patch_sha256": sha256_bytes(PATCH), **result},
    }
    (folder / "integration.patch").write_bytes(PATCH)
    path = folder / "integration.lock.json"
    path.write_text(json.dumps(content))
    return path


def test_pull_requests_keep_their_order_and_heads(tmp_path):
    found = read_composition(write(tmp_path))
    assert found.pull_requests == ((12, HEAD), (7, "c" * 40))
    assert not found.tree_checked


def test_another_patch_is_refused(tmp_path):
    path = write(tmp_path)
    (tmp_path / "integration.patch").write_bytes(PATCH + b"\n")
    with pytest.raises(UsageError, match=r"integration.patch: its SHA-256 is"):
        read_composition(path)


def test_missing_patch_is_refused(tmp_path):
    path = write(tmp_path)
    (tmp_path / "integration.patch").unlink()
    with pytest.raises(UsageError, match="patch of the composition lock is missing"):
        read_composition(path)


@pytest.mark.parametrize("head", ["abc", "A" * 40, "main"])
def test_heads_are_whole_commits(tmp_path, head):
    path = write(tmp_path)
    path.write_text(path.read_text().replace(HEAD, head))
    with pytest.raises(UsageError, match=r"pull_requests.0.head"):
        read_composition(path)


def test_tree_of_a_checkout_is_compared(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    git = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    tree = subprocess.run(
        [*git, "rev-parse", "HEAD^{tree}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert read_composition(write(tmp_path, tree=tree), source).tree_checked
    with pytest.raises(UsageError, match="the checkout's tree is"):
        read_composition(write(tmp_path), source)
