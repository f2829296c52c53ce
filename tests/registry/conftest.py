"""Fixtures for registries."""

import pytest

from tests.registry.fake import FakeRegistry, running


@pytest.fixture
def fake() -> FakeRegistry:
    """A registry that misbehaves on demand."""
    with running() as registry:
        yield registry


@pytest.fixture(autouse=True)
def no_credentials(tmp_path, monkeypatch):
    """Nobody's own `docker login` takes part."""
    (tmp_path / "docker").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
