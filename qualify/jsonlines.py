"""JSON-lines files, plain while they are written and gzip-compressed once their bundle is sealed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated

import msgspec

from qualify.errors import EvidenceError

Int = Annotated[int, msgspec.Meta(ge=-(2**30), le=2**30)]
"""An integer that is kept in arrays of 32 bits; so is the sum of two."""


@contextmanager
def open_lines(path: Path) -> Iterator[BufferedIOBase]:
    """Opens a ``.jsonl`` or ``.jsonl.gz`` file for reading.

    Args:
        path: The file.

    Yields:
        A stream whose lines are the file's lines, decompressed.

    Raises:
        EvidenceError: While it is read: it is compressed, and damaged or cut.
        OSError: The file cannot be opened or read.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            yield lines
    # gzip's words for a file that ends too early, is wrong inside, and has a wrong check sum or beginning
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise EvidenceError(
            f"is damaged or was cut: {error}", where=str(path), advice="Copy the bundle again, or run again."
        ) from error
