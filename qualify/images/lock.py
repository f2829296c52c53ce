"""The release lock: everything that an image is made of, resolved and pinned. Its SHA-256 is the build id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from qualify.errors import UsageError
from qualify.evidence.digests import canonical_json, sha256_file, sha256_value
from qualify.evidence.writing import write_whole
from qualify.images.composition import LockedComposition, read_composition
from qualify.images.sources import LockedSource, content_sha256, lock_source
from qualify.images.wheels import LockedWheel, lock_wheels
from qualify.inputs import Inputs
from qualify.release import Image

FORMAT = "qualify/lock/2"
RELEASE_LOCK = "release.lock.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """The image that is built on.

    Attributes:
        name: Its name, without tag digest.
        digest: ``sha256:...`` of its manifest where it came from a registry, else of its configuration.
        from_registry: True where `digest` is a manifest's.
    """

    name: str
    digest: str
    from_registry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFile:
    """One file by content.

    Attributes:
        name: Its name.
        sha256: Digest of its content.
    """

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLock:
    """Everything that an image is made of.

    Attributes:
        format: Version of this format.
        release: Name of the release.
        base: The image that is built on.
        recipe_sha256: Digest of the Dockerfile.
        vllm: Version of vLLM that must be in the image.
        python: The image's interpreter.
        contracts: Subjects that must pass inside the image.
        wheels: Python packages that are installed.
        sources: Folders that are built into it.
        patches: Patches of the installed vLLM, in order.
        overlay_sha256: Digest of what is laid over the root directory; empty where nothing is.
        composition: How a fork's patch came about, where the release names it.
        cuda_architectures: Compute capabilities times ten, ascending.
        left_out: Python packages that ``pip check`` may miss, sorted.
        arguments: Build arguments, sorted by name.
    """

    format: str
    release: str
    base: LockedBase
    recipe_sha256: str
    vllm: str
    python: str
    contracts: tuple[str, ...]
    wheels: tuple[LockedWheel, ...]
    sources: tuple[LockedSource, ...]
    patches: tuple[LockedFile, ...]
    overlay_sha256: str
    composition: LockedComposition | None
    cuda_architectures: tuple[int, ...]
    left_out: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]

    @property
    def build_id(self) -> str:
        """SHA-256 of the lock file."""
        return sha256_value(self)


def image_of(inputs: Inputs) -> Image:
    """The image section of a release.

    Raises:
        UsageError: The release has none.
    """
    if inputs.release.image is None:
        raise UsageError(
            f"release {inputs.release.name} has no key image: it is served without one",
            advice="Take a release with launcher docker, e.g. images/ds4-cpu-image.",
        )
    return inputs.release.image


def resolve_lock(inputs: Inputs, find_base: Callable[[str], LockedBase]) -> ReleaseLock:
    """Resolves a release into its lock.

    Args:
        inputs: The release.
        find_base: Pins the base image by name.

    Returns:
        The lock.

    Raises:
        UsageError: Something is missing, or is not what is pinned.
        MachineryError: The base cannot be found out.
    """
    image = image_of(inputs)
    patches = [inputs.path(name) for name in image.patches]
    composition = _composition(inputs, image)
    wheels: tuple[LockedWheel, ...] = ()
    if image.requirements and image.wheels:
        wheels = lock_wheels(inputs.path(image.requirements), inputs.path(image.wheels))
    return ReleaseLock(
        format=FORMAT,
        release=inputs.release.name,
        base=find_base(image.base),
        recipe_sha256=_digest_of(inputs.path(image.recipe)),
        vllm=image.vllm,
        python=image.python,
        contracts=image.contracts,
        wheels=wheels,
        sources=tuple(lock_source(inputs.path(name).resolve()) for name in image.sources),
        patches=tuple(LockedFile(name=path.name, sha256=_digest_of(path)) for path in patches),
        overlay_sha256=content_sha256(inputs.path(image.overlay)) if image.overlay else "",
        composition=composition,
        cuda_architectures=tuple(sorted(image.cuda_architectures)),
        left_out=tuple(sorted(image.left_out)),
        arguments=tuple(sorted(image.arguments.items())),
    )


def _composition(inputs: Inputs, image: Image) -> LockedComposition | None:
    if image.composition is None:
        return None
    source = inputs.path(image.composition_source) if image.composition_source else None
    return read_composition(inputs.path(image.composition), source)


def _digest_of(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error


def write_lock(lock: ReleaseLock, path: Path) -> None:
    """Writes a lock: the same lock gives the same bytes."""
    write_whole(path, canonical_json(lock))


def read_lock(path: Path) -> ReleaseLock:
    """Reads a lock.

    Args:
        path: ``release.lock.json``.

    Raises:
        UsageError: It is missing, is no lock, or was edited by hand.
    """
    advice = f"Make it: `qualify lock {path.parent}`."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the release lock cannot be read: {error.strerror}", where=str(path), advice=advice
        ) from error
    try:
        lock = msgspec.json.decode(content, type=ReleaseLock)
    except msgspec.DecodeError as error:
        raise UsageError(f"is no release lock: {error}", where=str(path), advice=advice) from error
    if lock.format != FORMAT or canonical_json(lock) != content:
        raise UsageError("is not as `qualify lock` writes it", where=str(path), advice=advice)
    return lock


def check_lock(lock: ReleaseLock, found: ReleaseLock, path: Path) -> None:
    """Compares a lock with what is there.

    Args:
        lock: The lock as it was written.
        found: What the release resolves to now.
        path: The lock's file, for the message.

    Raises:
        UsageError: Something has changed since.
    """
    changed = [
        f"{item.name}: {_said(getattr(lock, item.name), getattr(found, item.name))}"
        for item in fields(lock)
        if getattr(lock, item.name) != getattr(found, item.name)
    ]
    if changed:
        raise UsageError(
            "what is there is not what the lock says:\n  " + "\n  ".join(changed),
            where=str(path),
            advice=f"If that is meant, lock again: `qualify lock {path.parent}`.",
        )


def _said(old: object, new: object) -> str:
    """The two values, or of two lists the entries in which they differ."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        gone = [item for item in old if item not in new]
        come = [item for item in new if item not in old]
        return f"locked {_short(gone)}, found {_short(come)}"
    return f"locked {_short(old)}, found {_short(new)}"


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 300 else f"{text[:300]} ..."
