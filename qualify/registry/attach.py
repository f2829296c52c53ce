"""Attaches a signed statement to an image, in the two ways that cosign reads.

1. cosign's tag scheme (cosign 1 and 2): an image under the tag ``sha256-<hex>.att``, each of whose layers is
   one DSSE envelope.
2. An OCI referrer (OCI 1.1; cosign 3): a manifest whose ``subject`` is the image and whose one layer is a
   Sigstore bundle (v0.3) with the same envelope. Where the registry has no referrers API, the index under the
   tag ``sha256-<hex>`` lists it, as the distribution specification demands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from qualify.errors import MachineryError
from qualify.evidence.digests import canonical_json, sha256_bytes
from qualify.registry.client import OCI_INDEX, OCI_MANIFEST, Manifest
from qualify.registry.promote import End

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_EMPTY = b"{}"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What is attached.

    Attributes:
        envelope: The signed statement.
        predicate_type: Type of its predicate.
        key_id: Which key signed it.
        date: ISO date and time of the run.
    """

    envelope: bytes
    predicate_type: str
    key_id: str
    date: str


def cosign_tag(digest: str) -> str:
    """The tag under which cosign looks for statements about a digest."""
    return referrers_tag(digest) + ".att"


def referrers_tag(digest: str) -> str:
    """The tag under which clients look for referrers where the registry has no API for them."""
    return digest.replace(":", "-")


def keep_attached(target: End, subject: Manifest, attachment: Attachment, *, lists_itself: bool) -> None:
    """Puts back what somebody else's write at the same moment took out of the lists.

    Args:
        target: Where the image lies.
        subject: The image's manifest.
        attachment: The statement, which was attached in both ways.
        lists_itself: True where the registry keeps the list of referrers itself.

    Raises:
        MachineryError: The registry is in trouble, or others write to the same lists all the time.
    """
    for _ in range(_ATTEMPTS):
        added = attach_by_tag(target, subject.digest, attachment)
        if not lists_itself:
            added |= _list_referrer(target, subject.digest, _referrer(subject, attachment))
        if not added:
            return
    raise MachineryError(
        f"the statement was taken out of the lists {_ATTEMPTS} times after it had been attached",
        where=f"{target.repository}:{referrers_tag(subject.digest)}",
        advice="Others publish the same image at this moment; try again when they are done.",
    )


def attach_by_tag(target: End, digest: str, attachment: Attachment) -> bool:
    """Attaches a statement by cosign's tag scheme; statements that are there already stay.

    Args:
        target: Where the image lies.
        digest: The image's digest.
        attachment: The statement.

    Returns:
        True where it had to be added.
    """
    tag = cosign_tag(digest)
    layer = _descriptor(_ENVELOPE_TYPE, attachment.envelope)
    layer["annotations"] = {
        # the key must be there: cosign refuses layers without it, and reads the envelope's signatures instead
        "dev.cosignproject.cosign/signature": "",
        "predicateType": attachment.predicate_type,
    }
    _upload(target, attachment.envelope)
    layers = _entries(target, tag, "layers")
    if any(entry.get("digest") == layer["digest"] for entry in layers):
        return False
    layers.append(layer)
    config = {
        "architecture": "",
        "config": {},
        "created": attachment.date,
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [entry["digest"] for entry in layers]},
    }
    _upload(target, canonical_json(config))
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": _descriptor(_CONFIG_TYPE, canonical_json(config)),
        "layers": layers,
    }
    target.registry.put_manifest(target.repository, tag, Manifest(canonical_json(manifest), OCI_MANIFEST))
    return True


def attach_as_referrer(target: End, subject: Manifest, attachment: Attachment) -> bool:
    """Attaches a statement as an OCI referrer; the same statement gives the same manifest.

    Args:
        target: Where the image lies.
        subject: The image's manifest.
        attachment: The statement.

    Returns:
        True where the registry keeps the list of referrers itself.
    """
    manifest = _referrer(subject, attachment)
    _upload(target, sigstore_bundle(attachment))
    _upload(target, _EMPTY)
    lists_itself = target.registry.put_manifest(target.repository, manifest.digest, manifest)
    if not lists_itself:
        _list_referrer(target, subject.digest, manifest)
    return lists_itself


def _referrer(subject: Manifest, attachment: Attachment) -> Manifest:
    return Manifest(
        canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": BUNDLE_TYPE,
                "config": _descriptor(_EMPTY_TYPE, _EMPTY),
                "layers": [_descriptor(BUNDLE_TYPE, sigstore_bundle(attachment))],
                "subject": _descriptor(subject.media_type, subject.content),
                "annotations": {
                    "dev.sigstore.bundle.content": "dsse-envelope",
                    "dev.sigstore.bundle.predicateType": attachment.predicate_type,
                    "org.opencontainers.image.created": attachment.date,
                },
            }
        ),
        OCI_MANIFEST,
    )


def _list_referrer(target: End, digest: str, referrer: Manifest) -> bool:
    """Lists a referrer in the index that stands for the API; True where it had to be added."""
    tag = referrers_tag(digest)
    entries = _entries(target, tag, "manifests")
    if any(known.get("digest") == referrer.digest for known in entries):
        return False
    said = {name: json.loads(referrer.content)[name] for name in ("artifactType", "annotations")}
    entry = _descriptor(OCI_MANIFEST, referrer.content) | said
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*entries, entry]}
    target.registry.put_manifest(target.repository, tag, Manifest(canonical_json(index), OCI_INDEX))
    return True


def sigstore_bundle(attachment: Attachment) -> bytes:
    """The envelope as a Sigstore bundle v0.3, signed with a key and with no entry in a transparency log."""
    return canonical_json(
        {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": attachment.key_id}, "tlogEntries": []},
            "dsseEnvelope": json.loads(attachment.envelope),
        }
    )


def _entries(target: End, tag: str, name: str) -> list[dict[str, Any]]:
    """The list in the manifest under a tag; empty where there is no such tag."""
    present = target.registry.manifest(target.repository, tag)
    if present is None:
        return []
    try:
        found = json.loads(present.content)[name]
        return [dict(entry) for entry in found]
    except (ValueError, KeyError, TypeError) as error:
        raise MachineryError(
            "something else than attached statements lies there", where=f"{target.repository}:{tag}"
        ) from error


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256_bytes(content)}", "size": len(content)}


def _upload(target: End, content: bytes) -> None:
    digest = f"sha256:{sha256_bytes(content)}"
    if not target.registry.has_blob(target.repository, digest):
        target.registry.upload_blob(target.repository, digest, len(content), [content])
