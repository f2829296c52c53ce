"""The pytest plugin that runs the suite on one subject and keeps the outcome of every check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ds4_kernels.contracts.subjects import Need, Subject

_MESSAGE_LIMIT = 1000  # characters; a drawn step can be long, and JUnit XML holds it whole


@dataclass(frozen=True)
class Failure:
    """A check that failed.

    Attributes:
        check: the check's name.
        message: what it found, cut where it is long.
    """

    check: str
    message: str


@dataclass(frozen=True)
class NotRun:
    """A check that was not run.

    Attributes:
        check: the check's name.
        reason: why not.
    """

    check: str
    reason: str


@dataclass
class ContractPlugin:
    """Hands the subject to the checks and collects what they say.

    Attributes:
        subject: what is tested.
        passed: names of the checks that passed.
        failed: checks that failed, or broke.
        not_run: checks whose needs the subject does not meet.
    """

    subject: Subject
    passed: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    @pytest.fixture(name="subject", scope="session")
    def subject_fixture(self) -> Subject:
        """Give the checks the subject under test."""
        return self.subject

    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the suite's marker."""
        config.addinivalue_line("markers", "needs(need): run only where the subject meets this need")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a check once for each returned-view design that the subject can be asked for."""
        if "design" in metafunc.fixturenames:
            metafunc.parametrize("design", self.subject.designs, ids=lambda design: design.value)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Take out the checks whose needs are not met, and keep the reason."""
        kept = []
        for item in items:
            lacking = _lacking(item, self.subject)
            if lacking is None:
                kept.append(item)
            else:
                self.not_run.append(NotRun(_check_name(item.nodeid), self.subject.lacks[lacking]))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a check; an error in its set-up or tear-down counts as a failure."""
        check = _check_name(report.nodeid)
        if report.failed:
            self.failed.append(Failure(check, _message(report)))
        elif report.skipped:
            self.failed.append(Failure(check, f"the check skipped itself: {report.longrepr}"))
        elif report.when == "call":
            self.passed.append(check)


def _lacking(item: pytest.Item, subject: Subject) -> Need | None:
    needs: Sequence[Need] = [mark.args[0] for mark in item.iter_markers("needs")]
    return next((need for need in needs if need in subject.lacks), None)


def _check_name(nodeid: str) -> str:
    return nodeid.rpartition("/")[2].removeprefix("test_").replace(".py::test_", ": ").replace("_", " ")


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash else report.longrepr).removeprefix("AssertionError: ")
    return message if len(message) <= _MESSAGE_LIMIT else message[:_MESSAGE_LIMIT] + " ..."
