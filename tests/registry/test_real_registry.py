"""Publication on a real registry (Debian's docker-registry on 127.0.0.1)."""

import base64
import datetime
import json

import pytest

from qualify.errors import ExitCode, MachineryError, UsageError
from qualify.evidence.bundle import STATEMENT
from qualify.images.registry_process import local_registry
from qualify.policy import PublicationPolicy
from qualify.publish import Publication, publish
from qualify.registry.attach import cosign_tag, referrers_tag
from qualify.registry.client import OCI_MANIFEST, Manifest, Registry
from qualify.registry.promote import End
from qualify.registry.reference import Reference, Repository
from tests.imagebundles import Keys, image_bundle
from tests.registry.fake import digest_of

pytestmark = [pytest.mark.slow, pytest.mark.docker]


class Shop:
    """A real registry with a tested image in staging, its bundle and a key."""

    def __init__(self, address, client, served, root):
        self.staging = End(client, Repository(address, "staging/ds4"))
        self.release = End(client, Repository(address, "release/ds4"))
        self.digest = self.push("candidate", b"layer" * 100_000)
        self.keys = Keys(root)
        self.bundle = self.keys.sign(
            image_bundle(served, root / "bundle", digest=self.digest, repository=str(self.staging.repository))
        )

    def push(self, tag, layer, end=None):
        """Pushes an image with one layer; its manifest is spaced as no JSON writer would."""
        end = end or self.staging
        config = b'{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}'
        described = []
        for blob, kind in ((config, "config.v1+json"), (layer, "layer.v1.tar")):
            end.registry.upload_blob(end.repository, digest_of(blob), len(blob), [blob])
            described.append(
                f'{{"mediaType": "application/vnd.oci.image.{kind}", '
                f'"size":   {len(blob)}, "digest": "{digest_of(blob)}"}}'
            )
        content = (
            f'{{"schemaVersion": 2, "mediaType":"{OCI_MANIFEST}",\n "config": {described[0]},'
            f' "layers": [ {described[1]} ]  }}'
        ).encode()
        end.registry.put_manifest(end.repository, tag, Manifest(content, OCI_MANIFEST))
        return digest_of(content)

    def publish(self, tag="1.0"):
        return publish(
            Publication(
                bundle=self.bundle,
                key=self.keys.verifying,
                policy=PublicationPolicy(format="qualify/publication/1", name="test"),
                target=Reference(self.release.repository, tag),
                source=None,
                channels=(),
                today=datetime.date(2026, 12, 2),
                dry_run=False,
            ),
            lambda line: None,
        )

    def released(self, tag):
        return self.release.registry.manifest(self.release.repository, tag)

    def blob(self, digest):
        with self.release.registry.blob(self.release.repository, digest) as pieces:
            return b"".join(pieces)


@pytest.fixture
def shop(served, tmp_path):
    with (
        local_registry(tmp_path / "registry") as running,
        Registry(Repository(running.address, "staging/ds4")) as client,
    ):
        yield Shop(running.address, client, served, tmp_path)


def test_promotes_the_tested_digest_and_attaches_the_statement(shop):
    assert shop.publish().digest == shop.digest
    image = shop.released("1.0")
    assert image.digest == shop.digest
    assert image == shop.staging.registry.manifest(shop.staging.repository, shop.digest)
    envelope = (shop.bundle.root / STATEMENT).read_bytes()
    [layer] = json.loads(shop.released(cosign_tag(shop.digest)).content)["layers"]
    assert shop.blob(layer["digest"]) == envelope
    [entry] = json.loads(shop.released(referrers_tag(shop.digest)).content)["manifests"]
    referrer = json.loads(shop.released(entry["digest"]).content)
    assert referrer["subject"]["digest"] == shop.digest
    attached = json.loads(shop.blob(referrer["layers"][0]["digest"]))
    statement = json.loads(base64.b64decode(attached["dsseEnvelope"]["payload"]))
    assert statement["subject"][0]["digest"] == {"sha256": shop.digest.removeprefix("sha256:")}


def test_again_changes_nothing_and_another_image_is_refused(shop):
    shop.publish()
    before = [shop.released(tag) for tag in ("1.0", cosign_tag(shop.digest), referrers_tag(shop.digest))]
    assert shop.publish().was_there
    assert before == [
        shop.released(tag) for tag in ("1.0", cosign_tag(shop.digest), referrers_tag(shop.digest))
    ]
    other = shop.push("2.0", b"other", shop.release)
    with pytest.raises(UsageError, match="a release tag never moves"):
        shop.publish("2.0")
    assert shop.released("2.0").digest == other


def test_moved_candidate_tag_does_not_matter(shop):
    assert shop.push("candidate", b"another build") != shop.digest
    shop.publish()
    assert shop.released("1.0").digest == shop.digest


def test_image_that_is_not_there(shop, served, tmp_path):
    more = {"digest": "sha256:" + "1" * 64, "repository": str(shop.staging.repository)}
    shop.bundle = shop.keys.sign(image_bundle(served, tmp_path / "other", **more))
    with pytest.raises(MachineryError, match="is not in the registry") as raised:
        shop.publish()
    assert raised.value.exit_code is ExitCode.MACHINERY
    assert shop.released("1.0") is None
