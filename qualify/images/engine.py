"""The Docker engine: reaching it, finding images in it, and what its errors mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import docker
from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, StreamParseError
from docker.models.images import Image as EngineImage
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from qualify.errors import MachineryError, UsageError
from qualify.images.lock import LockedBase

_TIMEOUT_S = 600
_START_IT = (
    "Start it, or let the project start one of its own: "
    "`python -m qualify.images.local_engine -- COMMAND` (as root)."
)
_FULL = "no space left on device"
ENGINE_ERRORS = (DockerException, RequestException, HTTPError, StreamParseError)
"""What the SDK raises where the engine refuses or fails: streams come straight from urllib3."""


def connect() -> DockerClient:
    """Reaches the engine that ``DOCKER_HOST`` names, or the machine's.

    Returns:
        A client.

    Raises:
        MachineryError: No engine answers.
    """
    try:
        client = docker.from_env(timeout=_TIMEOUT_S)
        client.ping()
    except ENGINE_ERRORS as error:
        raise MachineryError(f"no Docker engine answers: {error}", advice=_START_IT) from error
    return client


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turns what goes wrong at the engine into the project's errors.

    Args:
        doing: What was being done, e.g. ``push 127.0.0.1:5000/a``.

    Raises:
        MachineryError: The engine refused or did not answer.
    """
    try:
        yield
    except APIError as error:
        raise MachineryError(
            f"{doing}: {error.explanation or error}", advice=advice_for(str(error))
        ) from error
    except ENGINE_ERRORS as error:
        raise MachineryError(f"{doing}: {error}", advice=_START_IT) from error


def advice_for(message: str) -> str:
    """What to do about an engine's or builder's message; empty where nothing is known."""
    small = message.lower()
    if _FULL in small:
        return "The disk is full: `docker system prune`, or give the engine's data folder more room."
    if "connection refused" in small or "no such host" in small:
        return "The registry does not answer: start it, or name another (--registry; image.base)."
    if "unauthorized" in small or "no basic auth" in small or "denied" in small:
        return "The registry refuses these credentials: `docker login REGISTRY`."
    if "from versions: none" in small:
        return (
            "pip found no package at all, which hides a TLS error where TLS is re-signed: "
            "use wheels of the machine (image.wheels), or give pip the CA as a build secret."
        )
    return ""


def find_base(client: DockerClient, name: str) -> LockedBase:
    """Pins a base image.

    Args:
        client: The engine.
        name: ``NAME@sha256:...``, which is pulled if it is not there, or the name of an image that is there.
            One that was pulled is pinned by its registry's digest, one that was made here by its id.

    Returns:
        The base.

    Raises:
        UsageError: There is no such image.
        MachineryError: The engine failed.
    """
    plain, at, digest = name.partition("@")
    image = local_image(client, name)
    if image is None and at:
        with engine_errors(f"base image {name}"):
            try:
                image = client.images.pull(name)
            except NotFound as error:
                raise UsageError(
                    f"base image {name} is in no registry that the engine reaches: {error.explanation}"
                ) from error
    if image is None:
        raise UsageError(
            f"base image {name} is not on this machine",
            advice="Make it (`make base-image` for the CPU releases) or pull it (`docker pull`), "
            "or name one by digest: NAME@sha256:...",
        )
    repository = plain.rpartition(":")[0] if ":" in plain.rpartition("/")[2] else plain
    if not at:
        digest = _pulled_digest(image, repository)
    if digest:
        return LockedBase(name=repository, digest=digest, from_registry=True)
    return LockedBase(name=name, digest=str(image.id), from_registry=False)


def _pulled_digest(image: EngineImage, repository: str) -> str:
    """What the registry calls an image of this repository; empty where it never came from there."""
    known = dict(str(entry).split("@", 1) for entry in image.attrs.get("RepoDigests") or ())
    return known.get(repository, "")


def local_image(client: DockerClient, name: str) -> EngineImage | None:
    """An image that the engine has, by name, digest or id; None where it has none.

    Args:
        client: The engine.
        name: What to look for.
    """
    with engine_errors(f"image {name}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            return None
