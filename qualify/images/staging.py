"""Pushing an image to its staging repository, and what the registry then calls it."""

from __future__ import annotations

import re

from docker import DockerClient

from qualify.errors import MachineryError
from qualify.images.engine import advice_for, engine_errors, local_image
from qualify.images.identity import ImageIdentity

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def push(client: DockerClient, image_id: str, *, registry: str, name: str, build_id: str) -> ImageIdentity:
    """Pushes an image and reads its digest back from the registry.

    Args:
        client: The engine.
        image_id: The image.
        registry: ``HOST:PORT`` of the registry.
        name: Repository within it.
        build_id: SHA-256 of the release lock; its first digits are the tag.

    Returns:
        The image as it is known from now on.

    Raises:
        MachineryError: The push failed, or the registry holds something else than was pushed.
    """
    repository, tag = f"{registry}/{name}", build_id[:16]
    with engine_errors(f"push {repository}"):
        image = client.images.get(image_id)
        image.tag(repository, tag=tag)
        pushed = ""
        for event in client.api.push(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                message = str(event["error"])
                raise MachineryError(f"push {repository}: {message}", advice=advice_for(message))
            pushed = str(event.get("aux", {}).get("Digest", pushed))
        held = client.images.get_registry_data(f"{repository}:{tag}").id
    if not _DIGEST.fullmatch(pushed) or held != pushed:
        raise MachineryError(
            f"pushed {pushed or 'without a digest'}, and the registry has {held}",
            where=f"{repository}:{tag}",
            advice="Somebody else pushes to the same tag, or the registry is broken; push again.",
        )
    reference = f"{repository}@{pushed}"
    if local_image(client, reference) is None:
        with engine_errors(f"pull {reference}"):
            client.images.pull(reference)
    return ImageIdentity(
        digest=pushed,
        reference=reference,
        build_id=build_id,
        labels=tuple(sorted((image.labels or {}).items())),
    )
