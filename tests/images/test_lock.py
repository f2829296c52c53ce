"""The release lock: stable bytes, everything pinned, and what changed is said."""

import os
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_file
from qualify.images import compose
from qualify.images.compose import labels_of, lay_context
from qualify.images.lock import LockedBase, ReleaseLock, check_lock, read_lock, resolve_lock, write_lock
from qualify.inputs import Inputs, read_inputs
from tests.images.factory import LOCK
from tests.projects import Project

BASE = LockedBase(name="base:1", digest="sha256:" + "b" * 64, from_registry=False)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def composed(project: Project) -> Project:
    """A release with an image of one wheel, one source, one patch and one overlay."""
    root = project.root
    for name, text in {
        "kernels/module.py": "x = 1\n",
        "kernels/.gitignore": "*.pyc\n",
        "overlay/opt/notice": "text\n",
        "fix.patch": "--- a\n+++ b\n",
        "Dockerfile": "ARG BASE\nFROM ${BASE}\n",
        "pins.txt": "first==1.0\n",
        "wheels/first-1.0-py3-none-any.whl": "wheel",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    data = yaml.safe_load(project.release.read_text())
    del data["serving"]["python"]
    data["serving"]["launcher"] = "docker"
    data["image"] = {
        "base": "base:1",
        "python": "/opt/serving/bin/python",
        "vllm": "0.32.0",
        "contracts": ["reference"],
        "requirements": "pins.txt",
        "wheels": "wheels",
        "sources": ["kernels"],
        "patches": ["fix.patch"],
        "overlay": "overlay",
    }
    project.release.write_text(yaml.safe_dump(data))
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    return project


def resolved(project: Project) -> tuple[Inputs, ReleaseLock]:
    inputs = read_inputs(project.release)
    return inputs, resolve_lock(inputs, lambda name: BASE)


def test_build_id_is_the_hash_of_the_file(composed, tmp_path_factory):
    _, lock = resolved(composed)
    path = tmp_path_factory.mktemp("lock") / "release.lock.json"
    write_lock(lock, path)
    assert lock.build_id == sha256_file(path)
    assert read_lock(path) == lock == resolved(composed)[1]


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("Dockerfile", "recipe_sha256"),
        ("fix.patch", "patches"),
        ("overlay/opt/notice", "overlay_sha256"),
        ("kernels/module.py", "sources"),
        ("wheels/first-1.0-py3-none-any.whl", "wheels"),
    ],
)
def test_every_changed_part_is_named(composed, file, field):
    _, before = resolved(composed)
    check_lock(before, resolved(composed)[1], Path("release.lock.json"))
    (composed.root / file).write_text("other\n")
    _, after = resolved(composed)
    assert after.build_id != before.build_id
    with pytest.raises(UsageError, match=rf"\n  {field}: locked") as caught:
        check_lock(before, after, Path("images/x/release.lock.json"))
    assert "qualify lock images/x" in caught.value.advice


def test_source_is_the_last_commit_that_changed_it(composed):
    (composed.root / "elsewhere").write_text("1")
    git(composed.root, "add", ".")
    before = resolved(composed)[1].sources[0]
    git(composed.root, "commit", "-qm", "two")
    assert resolved(composed)[1].sources[0] == before
    assert not before.modified
    (composed.root / "kernels/new.py").write_text("y = 1\n")
    after = resolved(composed)[1].sources[0]
    assert after.modified
    assert (after.commit, after.tree) == (before.commit, before.tree)
    assert after.content_sha256 != before.content_sha256


def test_source_that_was_never_committed_is_refused(composed):
    (composed.root / "later").mkdir()
    (composed.root / "later/x.py").write_text("")
    composed.change(image__sources=["later"])
    with pytest.raises(UsageError, match="no commit holds this folder"):
        resolved(composed)


def test_context_holds_exactly_what_is_locked(composed):
    (composed.root / "kernels/module.pyc").write_text("cache")
    (composed.root / "wheels/second-1.0-py3-none-any.whl").write_text("not asked for")
    inputs, lock = resolved(composed)
    folder = composed.root / "context"
    (folder / "left").mkdir(parents=True)
    lay_context(lock, inputs, folder)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "Dockerfile",
        "overlay/opt/notice",
        "patches/001-fix.patch",
        "requirements.txt",
        "sources/kernels/.gitignore",
        "sources/kernels/module.py",
        "wheels/first-1.0-py3-none-any.whl",
    ]
    assert (folder / "requirements.txt").read_text() == f"first==1.0 --hash=sha256:{lock.wheels[0].sha256}\n"


def test_modes_and_links_are_pinned(composed):
    notice = composed.root / "overlay/opt/notice"
    digests = {resolved(composed)[1].overlay_sha256}
    notice.chmod(0o755)
    digests.add(resolved(composed)[1].overlay_sha256)
    link = composed.root / "overlay/python"
    for target in ("/usr/bin/python3", "opt", "opt/notice"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        digests.add(resolved(composed)[1].overlay_sha256)
    assert len(digests) == 5
    notice.chmod(0o4755)
    with pytest.raises(UsageError, match=r"notice: has mode 4755"):
        resolved(composed)


def test_context_has_the_modes_and_links_that_are_pinned(composed):
    overlay = composed.root / "overlay"
    (overlay / "opt/notice").chmod(0o600)
    (overlay / "opt/tool").write_text("")
    (overlay / "opt/tool").chmod(0o700)
    (overlay / "python").symlink_to("/nonexistent/python3")
    (overlay / "hosts").symlink_to("/etc/hosts")
    (overlay / "lib").symlink_to("opt")
    inputs, lock = resolved(composed)
    folder = composed.root / "context"
    before = os.umask(0o077)
    try:
        lay_context(lock, inputs, folder)
    finally:
        os.umask(before)
    laid = folder / "overlay"
    assert {path.name: os.readlink(path) for path in laid.iterdir() if path.is_symlink()} == {
        "python": "/nonexistent/python3",
        "hosts": "/etc/hosts",
        "lib": "opt",
    }
    modes = {name: stat.S_IMODE((laid / name).stat().st_mode) for name in ("opt", "opt/notice", "opt/tool")}
    assert modes == {"opt": 0o755, "opt/notice": 0o644, "opt/tool": 0o755}


def test_repository_within_a_source_is_refused(composed):
    inner = composed.root / "kernels/inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "x.py").write_text("")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "one")
    with pytest.raises(UsageError, match="is a repository within the folder"):
        resolved(composed)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("Dockerfile", "Dockerfile"),
        ("fix.patch", "patches/001-fix.patch"),
        ("overlay/opt/notice", "overlay"),
        ("overlay/opt/new", "overlay"),
        ("kernels/module.py", "sources/kernels"),
    ],
)
def test_what_changes_after_the_lock_was_compared_is_not_built(composed, file, named):
    inputs, lock = resolved(composed)
    lay_context(lock, inputs, composed.root / "context")
    (composed.root / file).write_text("edited\n")
    with pytest.raises(UsageError, match=rf"no longer what the lock says: {named}\n"):
        lay_context(lock, inputs, composed.root / "context")


def test_second_build_waits_for_the_context(tmp_path):
    said, order = [], []
    folder = tmp_path / "contexts/small"

    def second() -> None:
        with compose.alone(folder, said.append):
            order.append("second")

    with compose.alone(folder, said.append):
        other = threading.Thread(target=second)
        other.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]
    assert said == [f"another command builds from {folder}; waiting for it"]


def test_edited_lock_is_refused(tmp_path):
    path = tmp_path / "release.lock.json"
    write_lock(LOCK, path)
    path.write_bytes(path.read_bytes().replace(b"\n}", b"}\n"))
    with pytest.raises(UsageError, match="not as `qualify lock` writes it"):
        read_lock(path)
    path.write_text("{}")
    with pytest.raises(UsageError, match="is no release lock"):
        read_lock(path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        read_lock(path)


def test_labels_say_where_the_image_comes_from():
    labels = labels_of(LOCK)
    assert labels["org.opencontainers.image.revision"] == "1" * 40
    assert labels["org.opencontainers.image.base.digest"] == LOCK.base.digest
    assert labels["io.qualify.build-id"] == LOCK.build_id
    assert labels["io.qualify.vllm-version"] == "0.32.0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": None}, "needs the key image"),
        ({"serving__python": "x"}, "remove serving.python"),
        ({"image__wheels": None}, "belong together"),
        ({"image__contracts": []}, "at least 1"),
        ({"image__contracts": ["reference", "reference"]}, "twice"),
        ({"image__contracts": ["cuda"]}, "needs cuda_architectures"),
        ({"image__arguments": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({"image__arguments": {"BUILDER": "builder:latest"}}, "must be pinned"),
    ],
)
def test_bad_image_sections_are_refused(composed, change, said):
    composed.change(**change)
    with pytest.raises(UsageError, match=said):
        read_inputs(composed.release)
