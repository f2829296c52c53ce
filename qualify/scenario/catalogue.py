"""Prints the table of scenario files for docs: ``python -m qualify.scenario.catalogue scenarios``."""

from __future__ import annotations

import sys
from pathlib import Path

from qualify.scenario.expansion import profiles_of
from qualify.yamlsource import Source

_HEAD = ("| file | what it is | field cases | profiles |", "|---|---|---|---|")


def table(folder: Path) -> str:
    """A Markdown table with one row for each scenario file that has profiles.

    Args:
        folder: Holds the files.

    Returns:
        The table, sorted by name.

    Raises:
        UsageError: A file is no YAML.
    """
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        source = Source(path)
        if not (profiles := ", ".join(profiles_of(source))):
            continue
        cases = ", ".join(source.data["field_cases"])
        rows.append(f"| `{path.stem}` | {source.data['description'].rstrip('.')} | {cases} | {profiles} |")
    return "\n".join((*_HEAD, *rows))


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
