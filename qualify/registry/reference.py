"""Where something lies in a registry."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qualify.errors import UsageError
from qualify.loopback import is_loopback

# The grammar of the OCI distribution specification (v1.1, "Pulling manifests"). The registry must be named:
# leaving it out means Docker Hub to some tools and a local registry to others.
_REPOSITORY = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
_REFERENCE = re.compile(
    rf"(?P<registry>(?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::\d+)?)/(?P<repository>{_REPOSITORY})"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository of one registry.

    Attributes:
        registry: Host and port.
        name: Its name there.
    """

    registry: str
    name: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.name}"

    @property
    def is_local(self) -> bool:
        """True where the registry listens on this machine's loopback interface: plain HTTP, no proxy."""
        host = self.registry.rpartition(":")[0] if re.search(r":\d+$", self.registry) else self.registry
        return is_loopback(host.strip("[]"))


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository, and which of its manifests.

    Attributes:
        repository: The repository.
        tag: A tag; empty where none is given.
        digest: ``sha256:...``; empty where none is given.
    """

    repository: Repository
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}{'@' if self.digest else ''}{self.digest}"


def parse_reference(text: str) -> Reference:
    """Reads ``REGISTRY/NAME[:TAG][@sha256:...]``.

    Args:
        text: What the user gave.

    Raises:
        UsageError: It is something else, or does not name the registry.
    """
    found = _REFERENCE.fullmatch(text)
    registry = found["registry"] if found else ""
    if found is None or not (set(registry) & set(".:") or registry == "localhost"):
        raise UsageError(
            f"{text!r} is not of the form REGISTRY/NAME[:TAG][@sha256:...]",
            advice="Name the registry, e.g. registry.example.com/team/image:1.2 or 127.0.0.1:5000/image:1.2.",
        )
    return Reference(Repository(registry, found["repository"]), found["tag"] or "", found["digest"] or "")


def check_tag(text: str) -> str:
    """Refuses what no registry takes as a tag.

    Raises:
        UsageError: It is none.
    """
    if not _TAG.fullmatch(text):
        raise UsageError(f"{text!r} is not a tag: letters, digits, '.', '_' and '-', at most 128 of them")
    return text
