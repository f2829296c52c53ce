"""The shipped releases in containers, from the lock to the release tag: `make test-images`."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import NotFound

from qualify.errors import ExitCode
from qualify.evidence.bundle import STATEMENT, Bundle, verify
from qualify.images.containers import HARNESS_LABEL
from qualify.images.identity import IMAGE_FILE, LOCK_FILE, ImageIdentity
from qualify.images.lock import ReleaseLock
from qualify.images.registry_process import Registry
from tests.images.conftest import ROOT
from tests.projects import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(1500)]
_GB = 1_000_000_000
PUBLICATION = "images/ds4-cpu-image/publication.yaml"


def qualify(*words: object) -> Outcome:
    command = [sys.executable, "-m", "qualify", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, check=False, timeout=1400, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)  # shown where a test fails
    return Outcome(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Run:
    """A run of a shipped release, signed."""

    code: int
    bundle: Bundle
    key: Path
    release: str

    @property
    def image(self) -> ImageIdentity:
        return self.bundle.read(IMAGE_FILE, ImageIdentity)

    def verify(self, bundle: Path | None = None) -> Outcome:
        return qualify("verify", bundle or self.bundle.root, "--key", f"{self.key}.pub")

    def publish(self, tag: str, bundle: Path | None = None) -> Outcome:
        to = ("--to", f"{self.release}:{tag}", "--policy", PUBLICATION)
        return qualify("publish", bundle or self.bundle.root, "--key", f"{self.key}.pub", *to)


def run(name: str, registry: Registry, folder: Path, *options: str) -> Run:
    key = folder / "release.key"
    assert qualify("keygen", key).code == ExitCode.QUALIFIED
    assert qualify("lock", f"images/{name}").code == ExitCode.QUALIFIED
    words = ("--registry", registry.address, "--bundles", folder / "bundles", "--key", key)
    done = qualify("run", f"images/{name}", *words, *options)
    (root,) = (folder / "bundles").iterdir()
    return Run(done.code, Bundle(root), key, f"{registry.address}/release/{name}")


@pytest.fixture(scope="module")
def right(engine: DockerClient, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The embedded release, run once for all tests of this module."""
    return run("ds4-cpu-image", registry, tmp_path_factory.mktemp("right"))


def test_release_is_qualified_by_the_digest_that_was_served(engine: DockerClient, right: Run) -> None:
    assert right.code == ExitCode.QUALIFIED
    verify(right.bundle)
    image = right.image
    verdict = json.loads((right.bundle.root / "verdict.json").read_bytes())
    assert verdict["subject"] == image.subject
    assert engine.images.get_registry_data(image.reference).id == image.digest
    assert right.bundle.read(LOCK_FILE, ReleaseLock).build_id == image.label("io.qualify.build-id")
    looked = {item["rule"] for item in verdict["findings"] if item["rule"].startswith("inspect-")}
    assert {"inspect-contract-reference", "inspect-contract-emulated", "inspect-plugin"} <= looked
    assert engine.images.get(image.reference).attrs["Size"] < 3 * _GB
    assert not engine.containers.list(all=True, filters={"label": HARNESS_LABEL})


def test_release_tag_gives_the_tested_digest(engine: DockerClient, right: Run) -> None:
    assert right.verify().code == ExitCode.QUALIFIED
    assert right.publish("1.0").code == ExitCode.QUALIFIED
    tag = f"{right.release}:1.0"
    assert engine.images.get_registry_data(tag).id == right.image.digest
    pulled = engine.images.pull(tag)
    assert f"{right.release}@{right.image.digest}" in pulled.attrs["RepoDigests"]
    assert pulled.id == engine.images.get(right.image.reference).id
    again = right.publish("1.0")
    assert again.code == ExitCode.QUALIFIED
    assert "was there already" in again.err


@pytest.mark.parametrize("name", ["arms/candidate/server.log", "verdict.json", "image.json", STATEMENT])
def test_one_changed_byte_is_refused(engine: DockerClient, right: Run, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(right.bundle.root, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    assert right.verify(copy).code == ExitCode.INCONCLUSIVE
    assert right.publish("2.0", copy).code == ExitCode.INCONCLUSIVE
    assert_no_tag(engine, f"{right.release}:2.0")


def assert_no_tag(engine: DockerClient, reference: str) -> None:
    with pytest.raises(NotFound):
        engine.images.get_registry_data(reference)


def test_packed_stride_is_rejected_and_not_published(
    engine: DockerClient, registry: Registry, tmp_path: Path
) -> None:
    # a defect rejects with or without a control; `make qualify-image` serves it too
    packed = run("ds4-packed-stride-image", registry, tmp_path, "--no-control")
    assert packed.code == ExitCode.REJECTED
    verdict = json.loads((packed.bundle.root / "verdict.json").read_bytes())
    assert verdict["result"] == "rejected"
    assert "divergence" in {item["rule"] for item in verdict["findings"] if item["weight"] == "defect"}
    assert packed.verify().code == ExitCode.REJECTED
    assert packed.publish("1.0").code == ExitCode.REJECTED
    assert_no_tag(engine, f"{packed.release}:1.0")
