"""The published JSON Schemas of what the harness writes: `python -m qualify.reporting.schemas DIRECTORY`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from qualify.findings import Verdict
from qualify.reporting.compare_runs import RunComparison
from qualify.reporting.export import Export
from qualify.reporting.receipt import Receipt

SCHEMAS: dict[str, type] = {
    "receipt.schema.json": Receipt,
    "export.schema.json": Export,
    "run-comparison.schema.json": RunComparison,
    "verdict.schema.json": Verdict,
}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema of a type, with the descriptions of its documentation.

    Args:
        kind: A frozen dataclass.

    Returns:
        Draft 2020-12. Fields that are not described are refused, so that a misspelt one is noticed.
    """
    schema = msgspec.json.schema(kind)
    documented = {found.__name__: found for found in _dataclasses(kind)}
    for name, definition in schema["$defs"].items():
        if "properties" in definition:
            definition["additionalProperties"] = False
        if name not in documented:
            definition.pop("description", None)
            continue
        text = inspect.getdoc(documented[name]) or ""
        definition["description"] = text.partition("\n\n")[0]
        for field, description in _described(text).items():
            definition["properties"][field]["description"] = description
    return {"$schema": _DRAFT, **schema}


def _dataclasses(kind: type) -> list[type]:
    """A dataclass and all those that it is made of."""
    found: list[type] = []
    left: list[Any] = [kind]
    while left:
        item = left.pop()
        left += [part for part in getattr(item, "__args__", ()) if part is not Ellipsis]
        if isinstance(item, type) and is_dataclass(item) and item not in found:
            found.append(item)
            hints = inspect.get_annotations(item, eval_str=True)
            left += [hints[field.name] for field in fields(item)]
    return found


def _described(text: str) -> dict[str, str]:
    """The descriptions of a docstring's section `Attributes`, by name."""
    section = text.partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"\n(?=    \w+: )", "\n" + section)
    pairs = (entry.strip().partition(": ") for entry in entries if entry.strip())
    return {name: " ".join(description.split()) for name, _, description in pairs}


def write_schemas(directory: Path) -> None:
    """Writes all schemas.

    Args:
        directory: Where to; files of the same names are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, kind in SCHEMAS.items():
        text = json.dumps(schema_of(kind), indent=2, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1] if len(sys.argv) > 1 else "reports/schemas"))
