"""Promotion and attachment against a registry over HTTP: the same bytes, and a tag only at the very end."""

import json

import pytest

from qualify.errors import MachineryError
from qualify.registry.attach import (
    BUNDLE_TYPE,
    Attachment,
    attach_as_referrer,
    attach_by_tag,
    cosign_tag,
    referrers_tag,
)
from qualify.registry.client import Manifest, Registry
from qualify.registry.promote import End, copy_content, source_manifest
from tests.registry.fake import OCI_INDEX, OCI_MANIFEST, digest_of, running

ENVELOPE = b'{"payload":"e30=","payloadType":"t","signatures":[{"keyid":"k","sig":"AA=="}]}'
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"


def attachment(envelope=ENVELOPE):
    return Attachment(
        envelope=envelope, predicate_type=PREDICATE, key_id="k", date="2026-12-01T00:00:00+00:00"
    )


@pytest.fixture
def ends(fake):
    with Registry(fake.repository("staging")) as registry:
        yield End(registry, fake.repository("staging")), End(registry, fake.repository("release"))


def read(fake, reference):
    content, media_type = fake.manifests["release", reference]
    return json.loads(content), media_type


def test_same_bytes_and_no_tag(fake, ends):
    digest = fake.put_image("staging", "t")
    copy_content(*ends, source_manifest(ends[0], digest))
    assert fake.manifests["release", digest] == fake.manifests["staging", digest]
    assert [key for key in fake.manifests if key[0] == "release"] == [("release", digest)]
    assert {key[1] for key in fake.blobs if key[0] == "release"} == {
        key[1] for key in fake.blobs if key[0] == "staging"
    }


def test_blobs_are_mounted_not_moved(fake, ends):
    copy_content(*ends, source_manifest(ends[0], fake.put_image("staging", "t")))
    assert not [line for line in fake.log if line.startswith("PUT") and "/blobs/" in line]


def test_blobs_are_moved_where_they_cannot_be_mounted(fake, ends):
    fake.mounts = False
    digest = fake.put_image("staging", "t")
    copy_content(*ends, source_manifest(ends[0], digest))
    assert len([line for line in fake.log if line.startswith("PUT") and "/blobs/" in line]) == 2
    assert fake.manifests["release", digest] == fake.manifests["staging", digest]


def test_across_registries(fake, ends):
    digest = fake.put_image("staging", "t")
    with running() as other, Registry(other.repository("release")) as registry:
        target = End(registry, other.repository("release"))
        copy_content(ends[0], target, source_manifest(ends[0], digest))
        assert other.manifests["release", digest] == fake.manifests["staging", digest]
        assert not [line for line in other.log if "mount" in line]


def test_index_brings_its_children(fake, ends):
    digest = fake.put_index("staging", "t")
    copy_content(*ends, source_manifest(ends[0], digest))
    held = {key[1] for key in fake.manifests if key[0] == "release"}
    children = {entry["digest"] for entry in read(fake, digest)[0]["manifests"]}
    assert held == {digest, *children}
    assert len(children) == 2


def test_again_writes_no_blob(fake, ends):
    manifest = source_manifest(ends[0], fake.put_image("staging", "t"))
    copy_content(*ends, manifest)
    fake.log.clear()
    copy_content(*ends, manifest)
    assert [line for line in fake.writes() if "/blobs/" in line] == []


def test_what_was_qualified_is_gone(fake, ends):
    fake.put_image("staging", "t")
    with pytest.raises(MachineryError, match="is not in the registry"):
        source_manifest(ends[0], "sha256:" + "1" * 64)


@pytest.mark.parametrize("content", [b"x", b"[]", b'{"layers": [{"digest": 1}]}', b'{"layers": [null]}'])
def test_no_manifest(fake, ends, content):
    fake.put_manifest("staging", "t", content, OCI_MANIFEST)
    with pytest.raises(MachineryError, match=r"is no manifest|cannot be read"):
        copy_content(*ends, source_manifest(ends[0], digest_of(content)))
    assert fake.writes() == []


def test_blob_is_gone(fake, ends):
    fake.mounts = False
    digest = fake.put_image("staging", "t")
    for key in list(fake.blobs):
        del fake.blobs[key]
    with pytest.raises(MachineryError, match="404"):
        copy_content(*ends, source_manifest(ends[0], digest))
    assert ("release", digest) not in fake.manifests


def test_cosign_tag_scheme(fake, ends):
    digest = fake.put_image("release", "t")
    attach_by_tag(ends[1], digest, attachment())
    tag = cosign_tag(digest)
    assert tag == f"sha256-{digest.removeprefix('sha256:')}.att"
    manifest, media_type = read(fake, tag)
    assert media_type == manifest["mediaType"] == OCI_MANIFEST
    [layer] = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.dsse.envelope.v1+json"
    assert layer["annotations"] == {"dev.cosignproject.cosign/signature": "", "predicateType": PREDICATE}
    assert fake.blobs["release", layer["digest"]] == ENVELOPE
    config = json.loads(fake.blobs["release", manifest["config"]["digest"]])
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]


def test_other_statements_stay(fake, ends):
    digest = fake.put_image("release", "t")
    for envelope in (ENVELOPE, ENVELOPE + b"\n", ENVELOPE):
        attach_by_tag(ends[1], digest, attachment(envelope))
        attach_as_referrer(ends[1], Manifest(*fake.manifests["release", digest]), attachment(envelope + b" "))
    layers = read(fake, cosign_tag(digest))[0]["layers"]
    assert [layer["digest"] for layer in layers] == [digest_of(ENVELOPE), digest_of(ENVELOPE + b"\n")]


def test_referrer_and_fallback_index(fake, ends):
    digest = fake.put_image("release", "t")
    subject = Manifest(*fake.manifests["release", digest])
    for _ in range(2):  # again: nothing is added
        attach_as_referrer(ends[1], subject, attachment())
    index, media_type = read(fake, referrers_tag(digest))
    assert media_type == OCI_INDEX
    [entry] = index["manifests"]
    assert entry["artifactType"] == BUNDLE_TYPE
    manifest, _ = read(fake, entry["digest"])
    assert entry["annotations"] == manifest["annotations"]
    assert manifest["annotations"]["dev.sigstore.bundle.predicateType"] == PREDICATE
    assert manifest["artifactType"] == BUNDLE_TYPE
    assert manifest["subject"] == {
        "mediaType": OCI_MANIFEST,
        "digest": digest,
        "size": len(subject.content),
    }
    [layer] = manifest["layers"]
    bundle = json.loads(fake.blobs["release", layer["digest"]])
    assert bundle["dsseEnvelope"] == json.loads(ENVELOPE)
    assert bundle["verificationMaterial"]["publicKey"] == {"hint": "k"}


def test_registry_that_lists_referrers_gets_no_fallback(fake, ends):
    fake.referrers = True
    digest = fake.put_image("release", "t")
    attach_as_referrer(ends[1], Manifest(*fake.manifests["release", digest]), attachment())
    assert fake.tag("release", referrers_tag(digest)) is None


def test_something_else_under_the_tag(fake, ends):
    digest = fake.put_image("release", "t")
    fake.put_manifest("release", cosign_tag(digest), b'{"layers": 3}', OCI_MANIFEST)
    with pytest.raises(MachineryError, match="something else than attached statements"):
        attach_by_tag(ends[1], digest, attachment())
