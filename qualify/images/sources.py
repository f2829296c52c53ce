"""Folders below version control: which commit and tree they are, and whether that is all of it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_bytes, sha256_file, sha256_value

_BEYOND_GIT = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """One folder that is built into an image.

    Attributes:
        name: Its name, without the folders above it.
        commit: The last commit that changed it, 40 hex digits.
        date: That commit's date, ISO 8601 in UTC.
        tree: Its tree at that commit, 40 hex digits.
        modified: True where files differ from that tree: then only `content_sha256` pins it.
        content_sha256: Digest of its files' paths, contents and modes; see `content_sha256`.
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
        Relative paths, sorted; symbolic links are files of their own.

    Raises:
        UsageError: There is a repository within it, of which git lists no files.
    """
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".").split(
        "\0"
    )
    paths = {name: folder / name for name in listed if name}
    for path in paths.values():
        if path.is_dir() and not path.is_symlink():
            raise UsageError(
                "is a repository within the folder, whose files cannot be pinned",
                where=str(path),
                advice="Name it under image.sources itself, or copy its files.",
            )
    return sorted(name for name, path in paths.items() if path.is_symlink() or path.is_file())


def laid_files(folder: Path) -> list[str]:
    """All files of a folder, version control or not: relative paths, sorted."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    )


def content_sha256(folder: Path, names: Iterable[str] | None = None) -> str:
    """Digest of a folder's files, by relative path, mode and content.

    Args:
        folder: The folder.
        names: Relative paths; None takes `source_files`.

    Returns:
        Hex digest. Of modes it knows what git knows: executable or not. Of a symbolic link, where it points.

    Raises:
        UsageError: A file has a mode that git cannot keep.
    """
    chosen = source_files(folder) if names is None else names
    return sha256_value({name: _entry(folder / name) for name in chosen})


def _entry(path: Path) -> tuple[str, str]:
    if path.is_symlink():
        return "link", sha256_bytes(os.fsencode(os.readlink(path)))
    return f"{kept_mode(path):o}", sha256_file(path)


def kept_mode(path: Path) -> int:
    """Mode of a file as git keeps it: 0o755 or 0o644.

    Raises:
        UsageError: The file is setuid, setgid or sticky, which would be lost without a word.
    """
    mode = path.stat().st_mode
    if mode & _BEYOND_GIT:
        raise UsageError(
            f"has mode {stat.S_IMODE(mode):04o}; of modes, git and so the lock keep the executable bit only",
            where=str(path),
            advice="Take the bit away (chmod), and set it in the recipe if it is meant.",
        )
    return 0o755 if mode & stat.S_IXUSR else 0o644


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
