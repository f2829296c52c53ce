"""The command that shows what runs reached."""

from __future__ import annotations

import lzma
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
_Bundle = tuple[str, RunRecord, Verdict]


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
        read = [
            bundle
            for index, path in enumerate(bundles)
            for bundle in ([_read(path)] if path.is_dir() else _unpacked(path, Path(work) / str(index)))
        ]
    sys.stdout.write(coverage_document(read))
    return ExitCode.QUALIFIED


def _unpacked(archive: Path, into: Path) -> Iterator[_Bundle]:
    if not archive.name.endswith(_ARCHIVE):
        raise UsageError(f"{archive} is neither a bundle nor an archive of bundles ({_ARCHIVE})")
    into.mkdir()
    try:
        with tarfile.open(archive) as members:
            members.extractall(into, filter="data")
    # lzma's words for an archive that ends too early and for one that is wrong inside
    except (OSError, tarfile.TarError, EOFError, lzma.LZMAError) as error:
        raise EvidenceError(f"cannot be unpacked: {error}", where=str(archive)) from error
    roots = sorted(root for root in into.iterdir() if root.is_dir())
    if not roots:
        raise EvidenceError("holds no bundle", where=str(archive))
    try:
        yield from map(_read, roots)
    except EvidenceError as error:
        # the directory is gone when the user reads this
        where = error.where.replace(str(into), str(archive))
        raise EvidenceError(error.what, where=where, advice=error.advice) from error


def _read(root: Path) -> _Bundle:
    bundle = Bundle(root)
    if (root / MANIFEST).exists():
        verify(bundle)
    record = read_record(bundle)
    policy, digest = read_policy(bundle)
    return root.name, record, judge(record, policy, digest)
