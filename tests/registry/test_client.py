"""The registry's client: bytes stay bytes, and trouble is told in a sentence."""

import base64
import json
import os
import socket

import pytest

from qualify.errors import MachineryError
from qualify.registry.client import Manifest, Registry
from qualify.registry.reference import Repository
from tests.registry.fake import OCI_MANIFEST, digest_of


@pytest.fixture
def client(fake):
    with Registry(fake.repository("a")) as registry:
        yield registry


def log_in(fake, password):
    auth = base64.b64encode(f"user:{password}".encode()).decode()
    config = {"auths": {fake.host: {"auth": auth}}}
    with open(os.path.join(os.environ["DOCKER_CONFIG"], "config.json"), "w") as stream:
        json.dump(config, stream)


def test_manifest_keeps_its_bytes(fake, client):
    digest = fake.put_image("a", "t")
    by_tag = client.manifest(fake.repository("a"), "t")
    assert by_tag == client.manifest(fake.repository("a"), digest)
    assert by_tag.digest == digest
    assert by_tag.media_type == OCI_MANIFEST
    assert client.manifest(fake.repository("a"), "other") is None


def test_bytes_that_are_not_the_digests_are_refused(fake, client):
    digest = fake.put_image("a", "t")
    content, kind = fake.manifests["a", digest]
    fake.manifests["a", digest] = (content + b" ", kind)
    with pytest.raises(MachineryError, match="gave a manifest with digest"):
        client.manifest(fake.repository("a"), digest)


def test_written_manifest_is_read_back(fake, client):
    fake.put_image("a", "t")
    manifest = client.manifest(fake.repository("a"), "t")
    other = Manifest(b'{"schemaVersion": 2}', OCI_MANIFEST)

    def somebody_else(method, path):
        if method == "GET":
            fake.put_manifest("a", "new", other.content, other.media_type)

    fake.before = somebody_else
    with pytest.raises(MachineryError, match=f"{other.digest} lies there after {manifest.digest}"):
        client.put_manifest(fake.repository("a"), "new", manifest)


def test_blob_up_and_down(fake, client):
    content = bytes(range(256)) * 5000
    digest = digest_of(content)
    assert not client.has_blob(fake.repository("a"), digest)
    client.upload_blob(fake.repository("a"), digest, len(content), [content[:999], content[999:]])
    assert client.has_blob(fake.repository("a"), digest)
    with client.blob(fake.repository("a"), digest) as pieces:
        assert b"".join(pieces) == content


def test_wrong_blob_is_refused_by_the_registry(fake, client):
    with pytest.raises(MachineryError, match="DIGEST_INVALID"):
        client.upload_blob(fake.repository("a"), digest_of(b"x"), 1, [b"y"])


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        repository = Repository(f"127.0.0.1:{taken.getsockname()[1]}", "a")
        with Registry(repository) as client, pytest.raises(MachineryError, match="does not answer"):
            client.manifest(repository, "t")


def test_registry_hangs_up(fake, client):
    def die(method, path):
        raise RuntimeError("as asked")

    fake.before = die
    with pytest.raises(MachineryError, match="500"):
        client.manifest(fake.repository("a"), "t")


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "docker login"), (403, "docker login"), (500, "Try again"), (429, "TROUBLE: as asked")],
)
def test_refusals_say_what_to_do(fake, client, status, said):
    fake.trouble = lambda method, path: status
    with pytest.raises(MachineryError) as raised:
        client.manifest(fake.repository("a"), "t")
    assert str(status) in raised.value.what
    assert said in str(raised.value)


def test_one_failure_is_one_request(fake, client):
    fake.trouble = lambda method, path: 500
    with pytest.raises(MachineryError):
        client.manifest(fake.repository("a"), "t")
    assert len(fake.log) == 1


@pytest.mark.parametrize("bearer", [False, True])
def test_credentials_of_docker_login(fake, client, bearer):
    fake.password, fake.bearer = "secret", bearer
    digest = fake.put_image("a", "t")
    log_in(fake, "secret")
    assert client.manifest(fake.repository("a"), "t").digest == digest
    client.upload_blob(fake.repository("b"), digest_of(b"x"), 1, [b"x"])
    if bearer:
        assert fake.tokens == [["repository:a:pull,push"]]


@pytest.mark.parametrize("bearer", [False, True])
@pytest.mark.parametrize("password", ["wrong", None])
def test_wrong_or_no_credentials(fake, client, bearer, password):
    fake.password, fake.bearer = "secret", bearer
    if password:
        log_in(fake, password)
    with pytest.raises(MachineryError) as raised:
        client.manifest(fake.repository("a"), "t")
    assert "401" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "wrong" not in str(raised.value)


def test_token_is_asked_for_all_scopes_seen(fake, client):
    fake.password, fake.bearer = "secret", True
    log_in(fake, "secret")
    fake.put_image("a", "t")
    client.manifest(fake.repository("a"), "t")
    # the token expires: the next challenge is answered with both repositories' scopes
    client._client.auth._header = "Bearer expired"
    client.has_blob(fake.repository("b"), digest_of(b"x"))
    assert fake.tokens[-1] == ["repository:a:pull,push", "repository:b:pull,push"]
    client._client.auth._header = "Bearer expired"
    client.has_blob(fake.repository("b"), digest_of(b"x"))
    assert fake.tokens[-1] == ["repository:a:pull,push", "repository:b:pull,push"]


def test_tls_beyond_this_machine():
    with Registry(Repository("registry.invalid", "a")) as client:
        assert client._client.base_url.scheme == "https"
        assert client._client.trust_env


def test_credentials_go_nowhere_without_tls(fake, client):
    fake.password, fake.bearer, fake.realm = "secret", True, "http://registry.invalid/token"
    log_in(fake, "secret")
    with pytest.raises(MachineryError, match=r"to registry\.invalid without TLS"):
        client.manifest(fake.repository("a"), "t")


def test_redirected_nowhere_without_tls(fake, client):
    fake.redirect = "http://registry.invalid/blob"
    with (
        pytest.raises(MachineryError, match=r"to registry\.invalid without TLS"),
        client.blob(fake.repository("a"), digest_of(b"x")),
    ):
        pass
