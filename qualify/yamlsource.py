"""Loads the project's YAML files so that every complaint names file, line and column."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from qualify.errors import UsageError

Location = tuple[str | int, ...]
# What is written takes at least a character a value; aliases can make of a few lines more than memory holds.
_ALIASED_VALUES = 100_000
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """Base of all models read from YAML: unknown keys and silent conversions are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Problem:
    """One complaint about a file.

    Attributes:
        where: ``file:line:column``.
        what: What is wrong and what would be right.
    """

    where: str
    what: str


class Located(Protocol):
    """Plain data of which it is known where each value was written.

    Attributes:
        data: The data.
    """

    data: Any

    def where(self, location: Location) -> str:
        """``file:line:column`` of a value, or of the nearest value around it."""
        ...


class _PlainLoader(yaml.SafeLoader):
    """Takes no tags: no file of the project needs them, and a wrong value under one is any exception."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if not isinstance(event, yaml.AliasEvent) and event.tag is not None:
            raise yaml.MarkedYAMLError(problem="tags are not taken", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class Source:
    """One YAML file: its plain data, and where each value stands.

    Args:
        path: The file; read at once.

    Raises:
        UsageError: The file cannot be read, or is not YAML of plain values with unique keys.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot be read: {error}", where=str(path)) from error
        self._marks: dict[Location, str] = {}
        try:
            loader = _PlainLoader(self.text)
            node = loader.get_single_node()
            if node is None:
                raise UsageError("is empty", where=str(path))
            self._mark(node, ())
            self.data: Any = loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            what = " ".join(part for part in (error.context, error.problem) if part)
            raise UsageError(what, where=self._place(error.problem_mark or error.context_mark)) from error
        except RecursionError as error:
            raise UsageError("is nested too deeply", where=str(path)) from error
        except (yaml.YAMLError, ValueError) as error:
            # Values such as 2026-13-45 match YAML's date pattern and fail in datetime.
            raise UsageError(f"not valid YAML: {error}", where=str(path)) from error

    def _mark(self, node: yaml.Node, location: Location, around: tuple[yaml.Node, ...] = ()) -> None:
        if node in around:
            raise UsageError("an alias stands for what it is in", where=self._place(node.start_mark))
        if len(self._marks) > len(self.text) + _ALIASED_VALUES:
            raise UsageError("its aliases stand for too many values", where=self._place(node.start_mark))
        around = (*around, node)
        self._marks[location] = self._place(node.start_mark)
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
            # no file has such a name, and no program such an argument
            raise UsageError("holds a zero byte", where=self._place(node.start_mark))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise UsageError(
                        "a key is text, not a list or a mapping", where=self._place(key.start_mark)
                    )
                if key.value in seen:
                    raise UsageError(f"key {key.value!r} is given twice", where=self._place(key.start_mark))
                seen.add(key.value)
                self._mark(key, (*location, key.value))
                self._mark(value, (*location, key.value), around)
                self._marks[(*location, key.value)] = self._place(key.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._mark(item, (*location, index), around)

    def _place(self, mark: yaml.Mark | None) -> str:
        return f"{self.path}:{mark.line + 1}:{mark.column + 1}" if mark else str(self.path)

    def over(self, base: Source) -> Source:
        """This file's values laid over another's: mappings are joined, anything else is replaced.

        Args:
            base: The file below.

        Returns:
            Data of both, each value with the place where it was written; path and text are this file's.
        """
        joined = copy.copy(self)
        joined.data = _laid_over(base.data, self.data)
        joined._marks = base._marks | self._marks
        return joined

    def where(self, location: Location) -> str:
        """``file:line:column`` of a value, or of the nearest value around it.

        Args:
            location: Keys and indices from the root, as pydantic gives them.
        """
        known: Location = ()
        for part in location:
            # pydantic's location also names union members and validators, which no file has
            if (*known, part) in self._marks:
                known = (*known, part)
        return self._marks.get(known, str(self.path))


def _laid_over(base: Any, top: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(top, dict):
        return top
    return base | {key: _laid_over(base.get(key), value) for key, value in top.items()}


_LOCATED = "located"


def located(problems: Sequence[tuple[Location, str]]) -> PydanticCustomError:
    """An error for a validator to raise that finds several things wrong, each in a place of its own.

    Args:
        problems: (place below the validated value, what is wrong).
    """
    text = "; ".join(what for _, what in problems)
    return PydanticCustomError(_LOCATED, "{text}", {"text": text, "problems": tuple(problems)})


def parse(source: Located, model: type[Model]) -> Model | list[Problem]:
    """Checks a file against its type.

    Args:
        source: The file.
        model: The type.

    Returns:
        The value, or every complaint that the type has about the file.
    """
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        items = error.errors()
        locations = [tuple(item["loc"]) for item in items]
        # A list with a wrong item is also reported as too short; that would only confuse.
        return [
            problem
            for item, location in zip(items, locations, strict=True)
            if not any(other != location and other[: len(location)] == location for other in locations)
            for problem in _problems(source, location, item)
        ]


def _problems(source: Located, location: Location, item: ErrorDetails) -> list[Problem]:
    if item["type"] == _LOCATED:
        return [Problem(source.where((*location, *at)), what) for at, what in item["ctx"]["problems"]]
    return [
        Problem(source.where(location), _sentence(_plain(source.data, location), item["msg"], item["type"]))
    ]


def _plain(data: Any, location: Location) -> Location:
    """A location without what pydantic puts in for members of unions, which no file has."""
    plain: Location = ()
    for part in location:
        inside = isinstance(data, dict) and part in data
        inside |= isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if inside:
            data = data[part]
        if inside or (part == location[-1] and isinstance(data, dict)):
            plain = (*plain, part)
    return plain


def _sentence(location: Location, message: str, kind: str) -> str:
    key = ".".join(str(part) for part in location)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {key!r}; remove it or correct its spelling"
    if kind == "missing":
        return f"key {key!r} is missing"
    text = message.removeprefix("Value error, ")
    return f"{key}: {text}" if key else text


def parse_or_refuse(source: Located, model: type[Model]) -> Model:
    """Checks a file against its type, where nothing else is left to be checked with it.

    Args:
        source: The file.
        model: The type.

    Returns:
        The value.

    Raises:
        UsageError: Lists every complaint that the type has about the file.
    """
    parsed = parse(source, model)
    if isinstance(parsed, list):
        raise _refusal(parsed)
    return parsed


def refuse(problems: list[Problem]) -> None:
    """Raises one error that lists all problems; does nothing where there are none.

    Args:
        problems: All that was found wrong.

    Raises:
        UsageError: There is at least one problem.
    """
    if problems:
        raise _refusal(problems)


def _refusal(problems: list[Problem]) -> UsageError:
    lines = "\n".join(f"  {problem.where}: {problem.what}" for problem in problems)
    noun = "problem" if len(problems) == 1 else "problems"
    return UsageError(f"{len(problems)} {noun} before anything was started:\n{lines}")
