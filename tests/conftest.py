"""Fixtures that several folders share."""

from pathlib import Path

import pytest
from hypothesis import settings

from qualify.errors import ExitCode
from tests.projects import Project, make_project

# The machines are noisy: how long an example takes says nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def project(tmp_path) -> Project:
    """A small release on the fake server."""
    return make_project(tmp_path)


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Path:
    """The bundle of one qualified run on the fake server; copy it, don't change it."""
    project = make_project(tmp_path_factory.mktemp("served"))
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.out
    return project.bundle()


@pytest.fixture(scope="session")
def served_rejected(tmp_path_factory) -> Path:
    """The same of a run whose candidate was wrong in all rows but one."""
    project = make_project(tmp_path_factory.mktemp("rejected"))
    project.misbehave("candidate", "wrong-row")
    outcome = project.run()
    assert outcome.code == ExitCode.REJECTED, outcome.out
    return project.bundle()
