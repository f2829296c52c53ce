"""Running the suite on a subject, and the summary of the run."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import torch

from ds4_kernels.contracts.plugin import ContractPlugin, Failure, NotRun
from ds4_kernels.contracts.subjects import Subject

SUITE = Path(__file__).with_name("suite")


@dataclass(frozen=True)
class Summary:
    """The outcome of one run of the suite.

    Attributes:
        subject: what was tested, as asked for.
        version: its version.
        device: what it ran on.
        fault: the fault that was put in, or None.
        passed: names of the checks that passed.
        failed: checks that failed, with what they found.
        not_run: checks that were not run, with the reason.
        seconds: how long the run took.
        software: versions of Python, torch and Triton.
    """

    subject: str
    version: str
    device: str
    fault: str | None
    passed: tuple[str, ...]
    failed: tuple[Failure, ...]
    not_run: tuple[NotRun, ...]
    seconds: float
    software: dict[str, str]

    def text(self) -> str:
        """Give the summary in lines to read."""
        fault = f" with fault {self.fault}" if self.fault else ""
        lines = [f"{self.subject} {self.version}{fault} on {self.device}:"]
        lines += [f"  FAILED {failure.check}: {failure.message.splitlines()[0]}" for failure in self.failed]
        reasons = Counter(entry.reason for entry in self.not_run)
        lines += [f"  not run {count} check(s): {reason}" for reason, count in reasons.items()]
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_run)} not run"
        return "\n".join([*lines, f"  {counts} in {self.seconds:.1f} s"])


def run_suite(subject: Subject, examples: int, junit: Path | None = None, only: str | None = None) -> Summary:
    """Put a subject through every check that applies to it.

    Args:
        subject: what to test.
        examples: drawn cases for each property.
        junit: where to write JUnit XML, or None.
        only: pytest expression that selects checks, or None for all.

    Returns:
        The outcome.
    """
    # Derandomized: the same suite and the same subject give the same outcome. Not shrunk: the checks say what
    # they found in a line, and shrinking takes minutes in Triton's interpreter.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "contract",
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        phases=phases,
    )
    hypothesis.settings.load_profile("contract")
    plugin = ContractPlugin(subject)
    arguments = [str(SUITE), "-q", "--no-header", "--no-summary", "--tb=short", "-p", "no:cacheprovider"]
    arguments += ["-c", str(SUITE / "pytest.ini"), "--rootdir", str(SUITE)]
    if junit:
        junit.parent.mkdir(parents=True, exist_ok=True)
        arguments += [f"--junitxml={junit}", "-o", f"junit_suite_name={subject.name} {subject.version}"]
    if only:
        arguments += ["-k", only]
    start = time.monotonic()
    code = pytest.main(arguments, plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        plugin.failed.append(Failure("the suite", f"pytest ended with {code!r}"))
    fault = subject.request.fault
    return Summary(
        subject=subject.name,
        version=subject.version,
        device=device_name(subject.device),
        fault=fault.value if fault else None,
        passed=tuple(plugin.passed),
        failed=tuple(plugin.failed),
        not_run=tuple(plugin.not_run),
        seconds=round(time.monotonic() - start, 1),
        software=software_versions(),
    )


def device_name(device: torch.device) -> str:
    """Name what a subject runs on."""
    if device.type != "cuda":
        return f"CPU ({platform.machine()})"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def software_versions() -> dict[str, str]:
    """Give the versions that an outcome depends on."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    triton = sys.modules.get("triton")
    if triton is not None:
        interpreted = "" if torch.cuda.is_available() else " (interpreter)"
        versions["triton"] = f"{triton.__version__}{interpreted}"
    return versions


def write_summary(summary: Summary, file: Path) -> None:
    """Write a summary as JSON.

    Args:
        summary: the outcome of a run.
        file: where to write it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dataclasses.asdict(summary), indent=2) + "\n", encoding="utf-8")
