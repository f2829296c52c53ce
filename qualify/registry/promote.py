"""Promotion: the same manifest, byte for byte, in another repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from qualify.errors import MachineryError
from qualify.registry.client import INDEXES, Manifest, Registry
from qualify.registry.reference import Repository


@dataclass(frozen=True, slots=True)
class End:
    """One end of a promotion.

    Attributes:
        registry: The connection.
        repository: The repository.
    """

    registry: Registry
    repository: Repository


@dataclass(frozen=True, slots=True)
class Blob:
    """What a manifest says of a blob.

    Attributes:
        digest: ``sha256:...``.
        size: Bytes.
    """

    digest: str
    size: int


def source_manifest(source: End, digest: str) -> Manifest:
    """Reads the manifest that is to be promoted.

    Args:
        source: Where it lies.
        digest: Its digest.

    Raises:
        MachineryError: It is not there.
    """
    manifest = source.registry.manifest(source.repository, digest)
    if manifest is None:
        raise MachineryError(
            "the image that was qualified is not in the registry",
            where=f"{source.repository}@{digest}",
            advice="It was deleted, or is in another registry (--from). Push the same image again: "
            "if it gets the same digest, the verdict holds.",
        )
    return manifest


def copy_content(source: End, target: End, manifest: Manifest) -> None:
    """Brings all that a manifest needs into another repository, and the manifest itself under its digest.

    No tag is written. What is there already is left alone.

    Args:
        source: Where everything lies.
        target: Where it goes.
        manifest: A manifest, or an index of manifests.

    Raises:
        MachineryError: A registry is in trouble, or the manifest cannot be read.
    """
    parsed = _parse(manifest, source)
    for child in _listed(parsed, "manifests") if manifest.media_type in INDEXES else ():
        copy_content(source, target, source_manifest(source, child.digest))
    if manifest.media_type not in INDEXES:
        for blob in (*_listed({"config": [parsed.get("config")]}, "config"), *_listed(parsed, "layers")):
            _copy_blob(source, target, blob)
    target.registry.put_manifest(target.repository, manifest.digest, manifest)


def _parse(manifest: Manifest, source: End) -> dict[str, object]:
    try:
        parsed = json.loads(manifest.content)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise MachineryError("is no manifest", where=f"{source.repository}@{manifest.digest}")
    return parsed


def _listed(parsed: dict[str, object], name: str) -> Iterator[Blob]:
    entries = parsed.get(name)
    for entry in entries if isinstance(entries, list) else []:
        try:
            yield Blob(str(entry["digest"]), int(entry["size"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MachineryError(f"the manifest's {name} cannot be read") from error


def _copy_blob(source: End, target: End, blob: Blob) -> None:
    if target.registry.has_blob(target.repository, blob.digest):
        return
    same = source.repository.registry == target.repository.registry
    if same and target.registry.mount_blob(target.repository, blob.digest, source.repository):
        return
    with source.registry.blob(source.repository, blob.digest) as content:
        target.registry.upload_blob(target.repository, blob.digest, blob.size, content)
