"""What an image is known by: the digest of its manifest in a registry."""

from __future__ import annotations

from dataclasses import dataclass

IMAGE_FILE = "image.json"
LOCK_FILE = "lock.json"
SBOM_FILE = "sbom.cdx.json"
INSPECT_FOLDER = "inspect"
SUBJECT_PREFIX = "image@"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIdentity:
    """One image, by digest; `image.json` of a bundle.

    Attributes:
        digest: ``sha256:<64 hex digits>`` of the manifest, as the registry gave it back.
        reference: ``REGISTRY/NAME@sha256:...``: where it was pushed to, and what the arms run.
        build_id: SHA-256 of the release lock that it was built from, 64 hex digits.
        labels: Its labels as (name, value), sorted by name.
    """

    digest: str
    reference: str
    build_id: str
    labels: tuple[tuple[str, str], ...]

    @property
    def subject(self) -> str:
        """What a verdict about it binds to: ``image@sha256:...``."""
        return f"{SUBJECT_PREFIX}{self.digest}"

    @property
    def repository(self) -> str:
        """The reference without its digest: ``REGISTRY/NAME``."""
        return self.reference.partition("@")[0]

    def label(self, name: str) -> str:
        """Value of a label; empty where it has none of this name."""
        return dict(self.labels).get(name, "")
