"""Writes the JSON Schema of scenario files, for editors.

``python -m qualify.scenario.schema scenarios/schema.json``. It is made from the types that read the files and
says what they say; what needs more than one value to be seen wrong is only found when a file is read.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from qualify.scenario.expansion import PROFILES
from qualify.scenario.model import Scenario

_PARAMETER = {
    "type": "string",
    "pattern": r"^\$[a-z][a-z0-9_]*$",
    "description": "A parameter, which each profile gives a value.",
}
_INCLUDE = {
    "type": "object",
    "description": "Takes the phases of another scenario within this one's folder.",
    "properties": {
        "include": {"type": "string", "description": "The file, relative to this one."},
        "judged": {"const": False, "description": "The phases only warm up or pollute."},
    },
    "required": ["include"],
    "additionalProperties": False,
}
_PROFILES = {
    "type": "object",
    "description": "Parameters by profile; all profiles give the same ones, used as $NAME anywhere else.",
    "properties": {name: {"type": "object"} for name in PROFILES},
    "additionalProperties": False,
    "minProperties": 1,
}
_ABOUT: tuple[str, ...] = ("default", "title", "description")
# never given by a parameter: what names the scenario rather than sizes it
_FIXED = frozenset({"format", "name", "description", "field_cases", "phases"})


def json_schema() -> dict[str, Any]:
    """The schema of a scenario file."""
    schema = Scenario.model_json_schema()
    definitions = schema.pop("$defs")
    for definition in (*definitions.values(), schema):
        _describe(definition)
        _allow_parameters(definition)
    properties = schema["properties"]
    properties["phases"]["items"] = {"anyOf": [properties["phases"]["items"], {"$ref": "#/$defs/Include"}]}
    properties["profiles"] = _PROFILES
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Scenario",
        "description": "One workload of `qualify`, see docs/scenarios.md.",
        "$defs": definitions | {"Include": _INCLUDE, "Parameter": _PARAMETER},
    }


def _describe(definition: dict[str, Any]) -> None:
    """Moves what the type's docstring says of each attribute to that attribute."""
    about, _, attributes = definition.get("description", "").partition("\n\nAttributes:\n")
    definition["description"] = about
    for entry in re.split(r"\n {4}(?=\S)", "\n" + attributes)[1:]:
        name, _, said = entry.partition(": ")
        if name in definition.get("properties", {}):
            definition["properties"][name]["description"] = " ".join(said.split()).replace("``", "`")


def _allow_parameters(definition: dict[str, Any]) -> None:
    for name, value in definition.get("properties", {}).items():
        if name not in _FIXED:
            definition["properties"][name] = _or_parameter(value)


def _or_parameter(value: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {key: value.pop(key) for key in _ABOUT if key in value}
    return {"anyOf": [value, {"$ref": "#/$defs/Parameter"}], **kept}


def text() -> str:
    """The schema as it is written to a file."""
    return json.dumps(json_schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
