"""JSON-lines files, plain while they are written and gzip-compressed once their bundle is sealed."""

from __future__ import annotations

import gzip
from io import BufferedIOBase
from pathlib import Path


def open_lines(path: Path) -> BufferedIOBase:
    """Opens a ``.jsonl`` or ``.jsonl.gz`` file for reading.

    Args:
        path: The file.

    Returns:
        A stream whose lines are the file's lines, decompressed.

    Raises:
        OSError: The file cannot be opened.
    """
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")
