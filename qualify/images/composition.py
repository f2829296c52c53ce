"""The locks in which release engineers keep how a fork's patch was put together from pull requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_file
from qualify.images.sources import tree_of

PATCH_FILE = "integration.patch"

Sha1 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Foreign(BaseModel):
    """Others keep more in these files than is read here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Base(_Foreign):
    repository: str
    ref: str
    commit: Sha1


class _PullRequest(_Foreign):
    number: int
    head: Sha1


class _Result(_Foreign):
    tree: Sha1
    patch_sha256: Sha256


class _IntegrationLock(_Foreign):
    base: _Base
    pull_requests: list[_PullRequest]
    result: _Result


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedComposition:
    """How a fork's patch came about, checked as far as it can be.

    Attributes:
        repository: Where the base comes from.
        ref: Branch or tag of the base.
        commit: Commit of the base.
        pull_requests: (number, head commit) of each pull request that was merged, in order.
        tree: Tree that base, pull requests and patch give.
        patch_sha256: Digest of the patch.
        tree_checked: True where a checkout was at hand and its HEAD has that tree.
        sha256: Digest of the lock file itself.
    """

    repository: str
    ref: str
    commit: str
    pull_requests: tuple[tuple[int, str], ...]
    tree: str
    patch_sha256: str
    tree_checked: bool
    sha256: str


def read_composition(lock: Path, source: Path | None = None) -> LockedComposition:
    """Reads a composition lock and checks it against the patch beside it.

    Args:
        lock: ``integration.lock.json``; ``integration.patch`` lies beside it.
        source: A checkout of the composed source, where there is one.

    Returns:
        The composition.

    Raises:
        UsageError: The lock is wrong, the patch is missing or another, or the checkout's tree is another.
    """
    try:
        content = _IntegrationLock.model_validate_json(lock.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(lock)) from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()
        )
        raise UsageError(f"is no composition lock: {problems}", where=str(lock)) from error
    patch = lock.with_name(PATCH_FILE)
    if not patch.is_file():
        raise UsageError("the patch of the composition lock is missing", where=str(patch))
    if (digest := sha256_file(patch)) != content.result.patch_sha256:
        raise UsageError(
            f"its SHA-256 is {digest}, and {lock.name} says {content.result.patch_sha256}",
            where=str(patch),
            advice="Patch and lock belong to different compositions; make both again.",
        )
    found = None if source is None else tree_of(source, "HEAD")
    if found is not None and found != content.result.tree:
        raise UsageError(
            f"the checkout's tree is {found}, and the lock says {content.result.tree}",
            where=str(source),
            advice="Check out the commit that the lock was made from.",
        )
    return LockedComposition(
        repository=content.base.repository,
        ref=content.base.ref,
        commit=content.base.commit,
        pull_requests=tuple((entry.number, entry.head) for entry in content.pull_requests),
        tree=content.result.tree,
        patch_sha256=content.result.patch_sha256,
        tree_checked=found is not None,
        sha256=sha256_file(lock),
    )
