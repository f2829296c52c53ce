"""Writes a scenario file out: its profile's parameters, the phases included, the traces replayed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from qualify.errors import UsageError
from qualify.scenario.values import Profile
from qualify.yamlsource import Located, Location, Problem, Source

FORMAT = "qualify/scenario/1"
PROFILES: tuple[str, ...] = get_args(Profile)
_PARAMETER = re.compile(r"^\$([a-z][a-z0-9_]*)$")
_INCLUDE_KEYS = {"include", "judged"}


class TraceRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One line of a trace.

    Attributes:
        offset_s: Seconds after the phase's start.
        context_tokens: Prompt length.
        decode_tokens: Tokens that were generated.
    """

    offset_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)]
    context_tokens: Annotated[int, msgspec.Meta(ge=1, le=4_194_304)]
    decode_tokens: Annotated[int, msgspec.Meta(ge=1, le=4_194_304)]


_read_line = msgspec.json.Decoder(TraceRequest).decode


@dataclass(slots=True)
class Expansion:
    """A scenario file written out, and where each of its values stands.

    Attributes:
        data: Plain data of one `qualify.scenario.Scenario`.
        problems: What could not be written out.
        texts: Every file that was read, by its path within the scenario's folder.
        origins: For each value that was read or made, the file that it comes from and its place there, by its
            location in `data`. Every error's place comes from here.
    """

    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    origins: dict[Location, tuple[Located, Location]] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """``file:line:column`` of a value, or of the nearest value around it."""
        for length in range(len(location), -1, -1):
            if location[:length] in self.origins:
                source, at = self.origins[location[:length]]
                return source.where((*at, *location[length:]))
        raise KeyError(location)


@dataclass(slots=True)
class _Lines:
    """Where the requests of a trace stand: the first number of a location is the line."""

    path: Path
    data: Any = None

    def where(self, location: Location) -> str:
        line = location[0] + 1 if location and isinstance(location[0], int) else 1
        return f"{self.path}:{line}"


def profiles_of(source: Source) -> tuple[str, ...]:
    """The profiles that a scenario file has, in their order; none where it is the same in all."""
    profiles = source.data.get("profiles") if isinstance(source.data, dict) else None
    return tuple(name for name in PROFILES if name in profiles) if isinstance(profiles, dict) else ()


def expand(source: Source, profile: str | None) -> Expansion:
    """Writes a scenario file out.

    Args:
        source: The file.
        profile: The profile; None for a file without profiles.

    Returns:
        The expansion; where it has problems, its data is not whole.
    """
    expansion = Expansion()
    _Writer(expansion, source.path.parent.resolve(), profile).whole(source)
    return expansion


class _Writer:
    """Writes one file, and the files that it includes, into an expansion."""

    def __init__(self, expansion: Expansion, folder: Path, profile: str | None) -> None:
        self._out = expansion
        self._folder = folder
        self._profile = profile
        self._open: list[Path] = []

    def whole(self, source: Source) -> None:
        self._out.origins[()] = (source, ())
        self._note(source.path, source.text)
        if not isinstance(source.data, dict):
            self._complain(source, (), "a scenario is a mapping of keys to values")
            return
        self._complain_about_profiles(source)
        parameters = self._parameters(source)
        self._open.append(source.path.resolve())
        for key, value in source.data.items():
            if key == "phases":
                self._out.data["phases"] = []
                self._phases(source, parameters, judged=None)
            elif key != "profiles":
                self._out.data[key] = self._filled(value, source, (key,), (key,), parameters)

    def _complain_about_profiles(self, source: Source) -> None:
        profiles = source.data.get("profiles")
        if profiles is None:
            return
        if not isinstance(profiles, dict) or not profiles:
            self._complain(source, ("profiles",), f"give parameters by profile: {', '.join(PROFILES)}")
            return
        keys = {name: set(values) if isinstance(values, dict) else None for name, values in profiles.items()}
        every = set().union(*(found for found in keys.values() if found))
        for name, found in keys.items():
            if name not in PROFILES:
                self._complain(
                    source, ("profiles", name), f"there is no profile {name!r}: {', '.join(PROFILES)}"
                )
            elif found is None:
                self._complain(source, ("profiles", name), "a profile is a mapping of parameters to values")
            elif lacking := sorted(every - found):
                self._complain(source, ("profiles", name), f"profile {name!r} lacks {', '.join(lacking)}")
        text = repr({key: value for key, value in source.data.items() if key != "profiles"})
        for name in sorted(every):
            if f"'${name}'" not in text:
                self._complain(source, ("profiles",), f"parameter {name!r} is not used")

    def _parameters(self, source: Source) -> dict[str, tuple[Any, Location]]:
        profiles = source.data.get("profiles")
        if not isinstance(profiles, dict) or not isinstance(profiles.get(self._profile), dict):
            return {}
        return {
            name: (value, ("profiles", str(self._profile), name))
            for name, value in profiles[self._profile].items()
        }

    def _phases(
        self, source: Source, parameters: dict[str, tuple[Any, Location]], judged: bool | None
    ) -> None:
        phases = source.data.get("phases")
        if not isinstance(phases, list):
            self._complain(source, ("phases",), "phases is a list")
            return
        for index, item in enumerate(phases):
            here: Location = ("phases", index)
            if isinstance(item, dict) and "include" in item:
                self._include(source, here, item, judged)
                continue
            place: Location = ("phases", len(self._out.data["phases"]))
            self._out.origins[place] = (source, here)
            phase = self._filled(item, source, here, place, parameters)
            if isinstance(phase, dict):
                if judged is not None:
                    phase["judged"] = judged
                self._trace(phase, source, here, place)
            self._out.data["phases"].append(phase)

    def _include(self, source: Source, here: Location, item: dict[str, Any], judged: bool | None) -> None:
        if unknown := sorted(set(map(str, item)) - _INCLUDE_KEYS):
            self._complain(source, (*here, unknown[0]), f"unknown key {unknown[0]!r} beside include")
        own = item.get("judged")
        if own not in (None, False):
            self._complain(source, (*here, "judged"), "an include can only be kept from being judged: false")
        path = self._within(source, (*here, "include"), item["include"])
        if path is None:
            return
        if path in self._open:
            names = " -> ".join(step.name for step in (*self._open, path))
            self._complain(source, (*here, "include"), f"includes itself: {names}")
            return
        try:
            included = Source(path)
        except UsageError as error:
            if error.where == str(path):  # the file as a whole: the line that names it says more
                self._complain(source, (*here, "include"), f"{path.name} {error.what}")
            else:
                self._out.problems.append(Problem(error.where, error.what))
            return
        self._note(path, included.text)
        if not isinstance(included.data, dict) or included.data.get("format") != FORMAT:
            self._complain(
                source, (*here, "include"), f"{path.name} is no scenario: format {FORMAT} is missing"
            )
            return
        known = profiles_of(included)
        if known and self._profile not in known:
            what = f"{path.name} has profiles {', '.join(known)}, and {self._profile or 'none'} is asked for"
            self._complain(source, (*here, "include"), what)
            return
        self._open.append(path)
        self._phases(included, self._parameters(included), False if own is False else judged)
        self._open.pop()

    def _filled(
        self,
        value: Any,
        source: Source,
        here: Location,
        place: Location,
        parameters: dict[str, tuple[Any, Location]],
    ) -> Any:
        """A copy of a value with the parameters put in."""
        if isinstance(value, str) and (match := _PARAMETER.match(value)):
            if match[1] not in parameters:
                which = f"profile {self._profile!r} has" if self._profile else "there are no profiles, hence"
                self._complain(source, here, f"{which} no parameter {match[1]!r}")
                return value
            filled, at = parameters[match[1]]
            self._out.origins[place] = (source, at)
            return filled
        if isinstance(value, dict):
            return {
                key: self._filled(inner, source, (*here, key), (*place, key), parameters)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [
                self._filled(inner, source, (*here, index), (*place, index), parameters)
                for index, inner in enumerate(value)
            ]
        return value

    def _trace(self, phase: dict[str, Any], source: Source, here: Location, place: Location) -> None:
        arrival = phase.get("arrival")
        if not isinstance(arrival, dict) or arrival.get("kind") != "trace" or "file" not in arrival:
            return
        for key, holder in (("context_tokens", phase), ("decode_tokens", phase), ("requests", phase)):
            if key in holder:
                self._complain(
                    source, (*here, key), f"{key} has no meaning with arrival 'trace', which gives it"
                )
                return
        path = self._within(source, (*here, "arrival", "file"), arrival["file"])
        if path is None:
            return
        requests = self._trace_requests(path, source, (*here, "arrival", "file"))
        lines: Located = _Lines(path)
        self._out.origins[(*place, "context_tokens")] = (lines, ())
        self._out.origins[(*place, "decode_tokens")] = (lines, ())
        phase["context_tokens"] = [request.context_tokens for request in requests]
        phase["decode_tokens"] = [request.decode_tokens for request in requests]
        phase["arrival"] = arrival | {"offsets_s": [request.offset_s for request in requests]}

    def _trace_requests(self, path: Path, source: Source, here: Location) -> list[TraceRequest]:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._complain(source, here, f"{path.name} cannot be read: {error}")
            return []
        self._note(path, text)
        requests: list[TraceRequest] = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                requests.append(_read_line(line))
            except msgspec.DecodeError as error:
                self._out.problems.append(Problem(f"{path}:{number}", f"not a request of a trace: {error}"))
        late = [
            index
            for index in range(1, len(requests))
            if requests[index].offset_s < requests[index - 1].offset_s
        ]
        if late:
            self._out.problems.append(
                Problem(f"{path}:{late[0] + 1}", "offset_s is earlier than the line before's")
            )
        if not requests:
            self._complain(source, here, f"{path.name} has no request")
        return requests

    def _within(self, source: Source, here: Location, name: object) -> Path | None:
        """The file of that name, if it lies within the scenario's folder."""
        if not isinstance(name, str) or not name:
            self._complain(source, here, "name a file, relative to this one")
            return None
        try:
            path = (source.path.parent / name).resolve()
        except ValueError:  # half of a surrogate pair
            self._complain(source, here, f"{name!r} is no name of a file")
            return None
        if Path(name).is_absolute() or not path.is_relative_to(self._folder):
            self._complain(
                source, here, f"{name} is outside the scenario's folder; only files within it are read"
            )
            return None
        return path

    def _note(self, path: Path, text: str) -> None:
        resolved = path.resolve()
        name = resolved.relative_to(self._folder) if resolved.is_relative_to(self._folder) else resolved.name
        self._out.texts[str(name)] = text

    def _complain(self, source: Source, here: Location, what: str) -> None:
        self._out.problems.append(Problem(source.where(here), what))
