"""Wheels that an image is made of: pinned by a requirements file, named and hashed by the lock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_file

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """One wheel.

    Attributes:
        name: Canonical name of the distribution.
        version: Its version.
        file: Name of the wheel's file.
        sha256: Digest of its content.
    """

    name: str
    version: str
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The line that makes pip take this wheel and no other."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class _Pin:
    version: str
    sha256: tuple[str, ...]


def lock_wheels(requirements: Path, folder: Path) -> tuple[LockedWheel, ...]:
    """Finds the wheel of each pin and hashes it.

    Args:
        requirements: ``name==version`` a line, optionally with ``--hash``.
        folder: Where the wheels lie; other files there are left alone.

    Returns:
        The wheels, sorted by name.

    Raises:
        UsageError: A line is no pin, a wheel is missing or there twice, or its hash is not the pinned one.
    """
    pins = _read_pins(requirements)
    found = _wheels_in(folder)
    problems, locked = [], []
    for name, pin in sorted(pins.items()):
        files = found.get((name, pin.version), [])
        if len(files) != 1:
            said = ", ".join(path.name for path in files) or "no wheel"
            problems.append(f"{name}=={pin.version}: {said} in {folder}")
            continue
        digest = sha256_file(files[0])
        if pin.sha256 and digest not in pin.sha256:
            problems.append(f"{files[0].name}: its SHA-256 is {digest}, not what {requirements} pins")
        locked.append(LockedWheel(name=name, version=pin.version, file=files[0].name, sha256=digest))
    if problems:
        raise UsageError(
            "the wheels are not those that are pinned:\n  " + "\n  ".join(problems),
            where=str(requirements),
            advice="Download them again: `make wheels`.",
        )
    return tuple(locked)


def _read_pins(requirements: Path) -> dict[str, _Pin]:
    try:
        text = requirements.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(requirements)) from error
    pins = {}
    for line in text.replace("\\\n", " ").splitlines():
        plain = line.split("#")[0].strip()
        if not plain:
            continue
        try:
            requirement = Requirement(plain.split(" --hash")[0])
            ((operator, version),) = ((item.operator, item.version) for item in requirement.specifier)
        except (InvalidRequirement, ValueError) as error:
            raise UsageError(
                f"{plain!r} is no pin of the form name==version", where=str(requirements)
            ) from error
        if operator != "==":
            raise UsageError(f"{plain!r} is no pin of the form name==version", where=str(requirements))
        if requirement.marker is None or requirement.marker.evaluate():
            pins[str(canonicalize_name(requirement.name))] = _Pin(
                str(Version(version)), tuple(_HASH.findall(plain))
            )
    return pins


def _wheels_in(folder: Path) -> dict[tuple[str, str], list[Path]]:
    if not folder.is_dir():
        raise UsageError(
            "the folder of the wheels does not exist",
            where=str(folder),
            advice="Make it: `make wheels`, or `make wheels-cuda` for a CUDA base.",
        )
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise UsageError(f"is no wheel: {error}", where=str(path)) from error
        found.setdefault((str(name), str(version)), []).append(path)
    return found
