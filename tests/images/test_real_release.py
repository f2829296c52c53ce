"""The shipped releases in containers, from the lock to the verdict: `make test-images`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker import DockerClient

from qualify.errors import ExitCode
from qualify.evidence.bundle import Bundle, verify
from qualify.images.containers import HARNESS_LABEL
from qualify.images.identity import IMAGE_FILE, LOCK_FILE, ImageIdentity
from qualify.images.lock import ReleaseLock
from qualify.images.registry_process import Registry
from tests.images.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(1500)]
_GB = 1_000_000_000


def qualify(*words: str) -> int:
    command = [sys.executable, "-m", "qualify", *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ, check=False, timeout=1400).returncode


def run(name: str, registry: Registry, bundles: Path) -> tuple[int, Bundle]:
    assert qualify("lock", f"images/{name}") == 0
    words = ("--registry", registry.address, "--bundles", str(bundles))
    code = qualify("run", f"images/{name}", *words)
    (root,) = bundles.iterdir()
    return code, Bundle(root)


def test_release_is_qualified_by_the_digest_that_was_served(
    engine: DockerClient, registry: Registry, tmp_path: Path
) -> None:
    code, bundle = run("ds4-cpu-image", registry, tmp_path)
    assert code == ExitCode.QUALIFIED
    verify(bundle)
    image = bundle.read(IMAGE_FILE, ImageIdentity)
    verdict = json.loads((bundle.root / "verdict.json").read_bytes())
    assert verdict["subject"] == image.subject
    assert engine.images.get_registry_data(image.reference).id == image.digest
    assert bundle.read(LOCK_FILE, ReleaseLock).build_id == image.label("io.qualify.build-id")
    looked = {item["rule"] for item in verdict["findings"] if item["rule"].startswith("inspect-")}
    assert {"inspect-contract-reference", "inspect-contract-emulated", "inspect-plugin"} <= looked
    assert engine.images.get(image.reference).attrs["Size"] < 3 * _GB
    assert not engine.containers.list(all=True, filters={"label": HARNESS_LABEL})


def test_packed_stride_is_rejected(registry: Registry, tmp_path: Path) -> None:
    code, bundle = run("ds4-packed-stride-image", registry, tmp_path)
    assert code == ExitCode.REJECTED
    assert json.loads((bundle.root / "verdict.json").read_bytes())["result"] == "rejected"
