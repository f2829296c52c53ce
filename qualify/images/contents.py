"""What is in an image, as the image itself said, and the bill of materials made from it."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass, field

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from qualify.images.identity import ImageIdentity

# RFC 4122: a name-based UUID of the image's digest makes the serial number the same for the same image.
_NAMESPACE = uuid.NAMESPACE_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What `probes/contents.py` prints.

    Attributes:
        python: Version of the interpreter.
        system: Name of the operating system.
        distributions: (name, version) of the Python packages, sorted.
        debian_packages: (name, version) of the Debian packages, sorted.
        plugins: Names of vLLM's general plugins that are installed.
        pip_check_code: Exit code of ``pip check``.
        pip_check: What it said.
        packaged_weights: Files that look like weights and belong to a Python package, sorted.
        faults: Forms in which each fault that the kernels know can be put in; empty where they do not say.
    """

    python: str
    system: str
    distributions: tuple[tuple[str, str], ...]
    debian_packages: tuple[tuple[str, str], ...]
    plugins: tuple[str, ...]
    pip_check_code: int
    pip_check: str
    packaged_weights: tuple[str, ...]
    faults: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def version(self, *names: str) -> str:
        """Version of the first of the named Python packages that is there; empty where none is."""
        versions = dict(self.distributions)
        return next((versions[name] for name in names if name in versions), "")


def bill_of_materials(contents: Contents, image: ImageIdentity, created: str) -> str:
    """Writes a CycloneDX 1.6 bill of materials.

    Args:
        contents: What is in the image.
        image: The image.
        created: Its label of that name, ISO 8601; empty takes the epoch.

    Returns:
        JSON; the same for the same image.
    """
    subject = Component(
        name=image.repository,
        version=image.digest,
        type=ComponentType.CONTAINER,
        bom_ref=image.reference,
    )
    components = [
        Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            purl=PackageURL(kind, namespace, name, version),
            bom_ref=f"{kind}/{name}@{version}",
        )
        for kind, namespace, packages in (
            ("pypi", None, contents.distributions),
            ("deb", "debian", contents.debian_packages),
        )
        for name, version in packages
    ]
    bom = Bom(components=components, serial_number=uuid.uuid5(_NAMESPACE, image.reference.partition("@")[2]))
    bom.metadata.component = subject
    bom.register_dependency(subject, components)
    bom.metadata.timestamp = (
        datetime.datetime.fromisoformat(created)
        if created
        else datetime.datetime.fromtimestamp(0, datetime.UTC)
    )
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
