"""The command that shows what runs reached."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from qualify.errors import EvidenceError, ExitCode, UsageError
from qualify.evidence.bundle import MANIFEST, Bundle, verify
from qualify.evidence.recording import read_policy, read_record
from qualify.findings import Verdict
from qualify.gate import judge
from qualify.record import RunRecord
from qualify.reporting.coverage_tables import coverage_document

_ARCHIVE = ".tar.xz"


@click.command("coverage")
@click.argument(
    "bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
def coverage_command(bundles: tuple[Path, ...]) -> int:
    """Prints what the runs of each BUNDLE reached, as tables in Markdown.

    A BUNDLE is a directory, or an archive (.tar.xz) of several. The exit code says nothing of the verdicts: 0
    where all bundles could be read.
    """
    with tempfile.TemporaryDirectory() as work:
        roots = [root for path in bundles for root in _roots(path, Path(work))]
        sys.stdout.write(coverage_document([_read(root) for root in roots]))
    return ExitCode.QUALIFIED


def _roots(path: Path, work: Path) -> Iterator[Path]:
    if path.is_dir():
        yield path
        return
    if not path.name.endswith(_ARCHIVE):
        raise UsageError(f"{path} is neither a bundle nor an archive of bundles ({_ARCHIVE})")
    into = work / path.name
    try:
        with tarfile.open(path) as archive:
            archive.extractall(into, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise EvidenceError(f"cannot be unpacked: {error}", where=str(path)) from error
    yield from sorted(root for root in into.iterdir() if root.is_dir())


def _read(root: Path) -> tuple[str, RunRecord, Verdict]:
    bundle = Bundle(root)
    if (root / MANIFEST).exists():
        verify(bundle)
    record = read_record(bundle)
    policy, digest = read_policy(bundle)
    return root.name, record, judge(record, policy, digest)
