"""Running the contract suite in a process of its own, as a user does."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Run:
    code: int
    summary: dict
    output: str
    cpu_seconds: float

    @property
    def failed(self) -> list[str]:
        return [failure["check"] for failure in self.summary["failed"]]

    @property
    def passed(self) -> list[str]:
        return self.summary["passed"]


def run_suite(folder: Path, *arguments: str, python_path: Path | None = None) -> Run:
    paths = [str(ROOT / "kernels"), *([str(python_path)] if python_path else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    file = folder / "summary.json"
    command = [sys.executable, "-m", "ds4_kernels.contracts", *arguments, "--json", str(file)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    summary = json.loads(file.read_text()) if file.is_file() else {}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(done.returncode, summary, done.stdout + done.stderr, spent)
