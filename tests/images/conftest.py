"""A real engine and registry, for the tests that are marked `docker`."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from qualify.images.engine import connect
from qualify.images.local_engine import local_engine
from qualify.images.registry_process import Registry, local_registry

ROOT = Path(__file__).parents[2]
BASE = "qualify-base:bookworm"


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    """The machine's engine, or a private one, with the base image in it."""
    before = os.environ.get("DOCKER_HOST")
    with local_engine(ROOT / ".cache/docker") as host:
        os.environ["DOCKER_HOST"] = host
        try:
            subprocess.run([ROOT / "images/base/make", BASE], check=True)
            yield connect()
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry of this test session."""
    with local_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running
