"""Pushing: errors come as events, and the digest is read back."""

import pytest
from docker.errors import StreamParseError
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from qualify.errors import MachineryError, UsageError
from qualify.images.engine import find_base
from qualify.images.lock import LockedBase
from qualify.images.staging import push
from tests.images.engine import FakeEngine, FakeImage
from tests.images.factory import DIGEST

REPOSITORY = "127.0.0.1:5000/staging/small"


def engine(*events: dict, held: str = DIGEST) -> FakeEngine:
    fake = FakeEngine()
    fake.images.known = {
        "sha256:1": FakeImage("sha256:1", {"b": "2", "a": "1"}),
        f"{REPOSITORY}@{DIGEST}": FakeImage("sha256:1"),
    }
    fake.images.held = held
    fake.api.events = list(events)
    return fake


def pushed(fake: FakeEngine):
    return push(fake, "sha256:1", registry="127.0.0.1:5000", name="staging/small", build_id="f" * 64)


def test_image_is_known_by_what_the_registry_holds():
    identity = pushed(engine({"status": "Preparing"}, {"aux": {"Digest": DIGEST}}, {"status": "done"}))
    assert identity.reference == f"{REPOSITORY}@{DIGEST}"
    assert identity.subject == f"image@{DIGEST}"
    assert identity.labels == (("a", "1"), ("b", "2"))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("unauthorized: authentication required", "docker login"),
        ("received unexpected HTTP status: 500 Internal Server Error", "500"),
        ("dial tcp 127.0.0.1:5000: connect: connection refused", "does not answer"),
    ],
)
def test_push_errors_are_not_overlooked(message, said):
    with pytest.raises(MachineryError, match=said):
        pushed(engine({"status": "Pushing"}, {"error": message}))


@pytest.mark.parametrize(
    "error",
    [
        ProtocolError("Connection broken: InvalidChunkLength"),
        ReadTimeoutError(None, "/push", "Read timed out."),  # type: ignore[arg-type]
        StreamParseError(ValueError("Expecting value")),
    ],
)
def test_engine_that_dies_in_mid_push_is_the_machines_trouble(error):
    def events():
        yield {"status": "Pushing"}
        raise error

    fake = engine()
    fake.api.events = events()
    with pytest.raises(MachineryError, match=r"push 127\.0\.0\.1:5000/staging/small"):
        pushed(fake)


@pytest.mark.parametrize("held", ["sha256:" + "e" * 64, ""])
def test_registry_that_holds_something_else_is_refused(held):
    with pytest.raises(MachineryError, match="and the registry has"):
        pushed(engine({"aux": {"Digest": DIGEST}}, held=held))


def test_push_without_a_digest_is_refused():
    with pytest.raises(MachineryError, match="without a digest"):
        pushed(engine({"status": "done"}))


def test_base_of_this_machine_is_pinned_by_its_id():
    fake = FakeEngine()
    fake.images.known = {"base:1": FakeImage("sha256:9")}
    found = find_base(fake, "base:1")
    assert (found.digest, found.from_registry) == ("sha256:9", False)


@pytest.mark.parametrize(
    ("name", "pulled", "repository"),
    [
        ("vllm/vllm-openai:v1", "vllm/vllm-openai", "vllm/vllm-openai"),
        ("localhost:5000/base", "localhost:5000/base", "localhost:5000/base"),
        ("localhost:5000/base:1", "localhost:5000/base", "localhost:5000/base"),
    ],
)
def test_base_that_was_pulled_by_tag_is_pinned_by_its_registrys_digest(name, pulled, repository):
    fake = FakeEngine()
    fake.images.known = {name: FakeImage("sha256:9", attrs={"RepoDigests": [f"{pulled}@{DIGEST}"]})}
    assert find_base(fake, name) == LockedBase(name=repository, digest=DIGEST, from_registry=True)


def test_digest_in_another_repository_pins_nothing():
    fake = FakeEngine()
    fake.images.known = {
        "base:1": FakeImage("sha256:9", attrs={"RepoDigests": [f"127.0.0.1:5/base@{DIGEST}"]})
    }
    assert find_base(fake, "base:1") == LockedBase(name="base:1", digest="sha256:9", from_registry=False)


def test_base_that_is_nowhere_is_refused():
    with pytest.raises(UsageError, match="make base-image"):
        find_base(FakeEngine(), "base:1")
    with pytest.raises(UsageError, match="in no registry"):
        find_base(FakeEngine(), f"base@{DIGEST}")
