"""Fixtures that several folders share."""

import pytest

from tests.projects import Project, make_project


@pytest.fixture
def project(tmp_path) -> Project:
    """A small release on the fake server."""
    return make_project(tmp_path)
