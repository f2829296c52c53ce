"""Writes files whole or not at all, and says which file it was that could not be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from qualify.errors import MachineryError

PARTIAL = ".partial"
"""Ends the name of what is only begun; a full disk or SIGKILL may leave it."""


@contextlib.contextmanager
def begun(path: Path, partial: Path) -> Iterator[None]:
    """Removes what was begun where the block fails.

    Args:
        path: The file that is to be.
        partial: What the block makes of it first.

    Raises:
        MachineryError: It could not be written; an error of writing has no file's name of its own.
    """
    try:
        yield
    except BaseException as error:  # an interruption too: a half-written file would be sealed with the rest
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise MachineryError(
                f"cannot be written: {error.strerror or error}",
                where=str(path),
                advice="Make room there, or have the folder made writable; then call it again.",
            ) from error
        raise


def write_whole(path: Path, content: bytes) -> Path:
    """Writes a file, and the folders that it needs.

    Args:
        path: The file; what is there already stays as it is where the new one cannot be written.
        content: All of it.

    Returns:
        The path.

    Raises:
        MachineryError: It cannot be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    with begun(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        os.replace(partial, path)
    return path
