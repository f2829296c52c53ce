"""Release files that are another one with some values changed: ``variant_of: release.yaml``."""

from __future__ import annotations

import os
from pathlib import Path

from qualify.errors import UsageError
from qualify.yamlsource import Source

_KEY = "variant_of"
RELEASE_TEXT = "inputs/release.yaml"
BASE_TEXT = "inputs/release.base.yaml"


def read_release_file(path: Path) -> tuple[Source, dict[str, str]]:
    """Reads a release file, and the one that it is a variant of.

    Args:
        path: The file.

    Returns:
        Its data, laid over the other file's where it names one, and the text of each file read by its path in
        the bundle.

    Raises:
        UsageError: A file cannot be read, or the one named is a variant itself or lies elsewhere.
    """
    source = Source(path)
    texts = {RELEASE_TEXT: source.text}
    if not isinstance(source.data, dict) or _KEY not in source.data:
        return source, texts
    name = source.data.pop(_KEY)
    where = source.where((_KEY,))
    if not isinstance(name, str) or os.path.dirname(name) or not name:
        raise UsageError(
            f"{_KEY}: {name!r} is not the name of a file in the same folder",
            where=where,
            advice="Relative paths of both files must start at the same place.",
        )
    try:
        base = Source(path.parent / name)
    except UsageError as error:
        raise UsageError(f"{_KEY}: {error}", where=where) from error
    if not isinstance(base.data, dict) or _KEY in base.data:
        raise UsageError(
            f"{_KEY}: {name} is no whole release", where=where, advice="Name the file that holds all values."
        )
    return source.over(base), texts | {BASE_TEXT: base.text}
