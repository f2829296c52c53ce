"""Folders below version control: which commit and tree they are, and whether that is all of it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_file, sha256_value


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """One folder that is built into an image.

    Attributes:
        name: Its name, without the folders above it.
        commit: The last commit that changed it, 40 hex digits.
        date: That commit's date, ISO 8601 in UTC.
        tree: Its tree at that commit, 40 hex digits.
        modified: True where files differ from that tree: then only `content_sha256` pins it.
        content_sha256: Digest of its files' paths and contents.
    """

    name: str
    commit: str
    date: str
    tree: str
    modified: bool
    content_sha256: str


def lock_source(folder: Path) -> LockedSource:
    """Pins one folder.

    Args:
        folder: A folder below version control.

    Returns:
        What it is.

    Raises:
        UsageError: It is not there, not below version control, or was never committed.
    """
    commit, _, date = _git(
        folder, "log", "-1", "--format=%H %cd", "--date=format-local:%FT%TZ", "--", "."
    ).partition(" ")
    if not commit:
        raise UsageError(
            "no commit holds this folder",
            where=str(folder),
            advice="Commit it: an image is made from commits.",
        )
    return LockedSource(
        name=folder.name,
        commit=commit,
        date=date,
        tree=_git(folder, "rev-parse", f"{commit}:./"),
        modified=bool(_git(folder, "status", "--porcelain", "--", ".")),
        content_sha256=content_sha256(folder),
    )


def source_files(folder: Path) -> list[str]:
    """Files of a folder that version control knows, or would take up: no caches, no build products.

    Args:
        folder: A folder below version control.

    Returns:
        Relative paths, sorted.
    """
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".").split(
        "\0"
    )
    return sorted(name for name in set(listed) if name and (folder / name).is_file())


def content_sha256(folder: Path) -> str:
    """Digest of a folder's files, by relative path and content."""
    return sha256_value({name: sha256_file(folder / name) for name in source_files(folder)})


def tree_of(repository: Path, commit: str) -> str:
    """Tree of a commit.

    Args:
        repository: A folder below version control.
        commit: 40 hex digits, or a name.

    Raises:
        UsageError: The folder is not there or not below version control, or has no such commit.
    """
    return _git(repository, "rev-parse", "--verify", f"{commit}^{{tree}}")


def _git(folder: Path, *words: str) -> str:
    if not folder.is_dir():
        raise UsageError("there is no such folder", where=str(folder))
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "TZ": "UTC", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"}
        | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
    )
    if done.returncode:
        raise UsageError(
            f"git cannot read it: {done.stderr.strip() or 'no such object'}",
            where=str(folder),
            advice="Sources of an image lie in a git repository, so that their commit can be named.",
        )
    return done.stdout.strip("\n")
