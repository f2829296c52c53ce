"""A bundle's files: where everything of one run lies, how it is written and read back.

bundle/
  plan.json                 everything resolved and pinned
  inputs/                   the YAML files as they were read
  run.json                  date, versions, complete or not
  image.json, lock.json     the image by digest, and what it was made of; with launcher docker only, as are
  inspect/, sbom.cdx.json   what was found in it
  arms/<arm>/arm.json       what became of the arm
  arms/<arm>/server.log     its log
  arms/<arm>/server-beside.log  the log of an attempt beside other servers that does not count
  arms/<arm>/configuration.json what its server said of its own configuration
  arms/<arm>/prefixes.json  before which runs its server's prefix cache was emptied
  arms/<arm>/steps.jsonl.gz engine steps, where the server recorded them; ``steps.rank1.jsonl.gz`` of rank 1
  arms/<arm>/<decode>.run<N>.jsonl.gz   transcripts
  arms/<arm>/metrics.jsonl.gz   its server's metrics and memory over time
  arms/<arm>/gpu.csv, gpu-errors.log    the graphics cards and the kernel log; where there are cards
  verdict.json              the verdict
  receipt.json, junit.xml, summary.txt, summary.md, report.html  reports
  manifest.json             SHA-256 of every other file
  statement.json            the signed statement, if a key was given; it holds the manifest's SHA-256
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from qualify.errors import EvidenceError
from qualify.evidence.digests import canonical_json, sha256_file
from qualify.evidence.writing import PARTIAL, begun, write_whole
from qualify.steps import step_log
from qualify.transcript import Arm, Decode, RunKey

MANIFEST = "manifest.json"
INSPECTIONS = "inspect/findings.json"
PREFIXES = "prefixes.json"
STATEMENT = "statement.json"
_UNSEALED = frozenset({MANIFEST, STATEMENT})
_TRANSCRIPT = re.compile(rf"(?P<decode>{'|'.join(Decode)})\.run(?P<number>\d+)\.jsonl(\.gz)?")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """``run.json``: the run itself.

    Attributes:
        status: ``incomplete`` from the first moment on, ``complete`` once everything was driven.
        why: Why it is incomplete; empty where it is complete.
        date: ISO date and time (UTC) at which the run began.
        harness: Version of the harness.
        plan_id: SHA-256 of the plan.
        adopted: (arm, bundle) for each arm whose evidence was taken from an earlier run with the same inputs.
        evidence_date: ISO date and time (UTC) of the run that made the oldest evidence in the bundle (arms or
            inspection), through any number of bundles; empty in bundles from before it was kept.
    """

    status: str
    why: str
    date: str
    harness: str
    plan_id: str
    adopted: tuple[tuple[str, str], ...] = ()
    evidence_date: str = ""

    @property
    def oldest(self) -> str:
        """Date by which the evidence ages: of its oldest part, where that was kept, or else of the run."""
        return min(self.evidence_date or self.date, self.date)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The directory of one run.

    Attributes:
        root: The directory.
    """

    root: Path

    def arm(self, arm: Arm) -> Path:
        """Directory of one arm."""
        return self.root / "arms" / arm

    def write(self, name: str, value: object) -> Path:
        """Writes a value as canonical JSON, whole or not at all.

        Args:
            name: Path within the bundle.
            value: Anything that `qualify.evidence.digests.canonical_json` takes.

        Returns:
            The file.
        """
        return self.write_bytes(name, canonical_json(value))

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Writes a file, whole or not at all.

        Args:
            name: Path within the bundle.
            content: Its bytes.

        Returns:
            The file.
        """
        return write_whole(self.root / name, content)

    def read(self, name: str, kind: type[Value]) -> Value:
        """Reads a JSON file back as a value of a type.

        Args:
            name: Path within the bundle.
            kind: The type that it was written from.

        Returns:
            The value.

        Raises:
            EvidenceError: The file is missing or holds something else.
        """
        path = self.root / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except OSError as error:
            raise EvidenceError(f"cannot be read: {error.strerror}", where=str(path)) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise EvidenceError(
                f"is not what this version of qualify writes: {error}", where=str(path)
            ) from error

    def transcripts(self, arm: Arm) -> dict[RunKey, Path]:
        """The arm's transcript files by run; one that was only begun is none.

        Args:
            arm: The arm.

        Raises:
            EvidenceError: A file is named like a transcript, but of no run.
        """
        found = {}
        for path in sorted(self.arm(arm).glob("*.run*")):
            if path.name.endswith(PARTIAL):
                continue
            name = _TRANSCRIPT.fullmatch(path.name)
            if name is None:
                raise EvidenceError("is named like a transcript, but of no run", where=str(path))
            found[RunKey(arm, Decode(name["decode"]), int(name["number"]))] = path
        return found

    def steps(self, arm: Arm, rank: int = 0) -> Path | None:
        """The step log of one rank of the arm's server, where it wrote one."""
        for name in (f"{step_log(rank)}.gz", step_log(rank)):
            if (self.arm(arm) / name).exists():
                return self.arm(arm) / name
        return None


def compress(path: Path) -> None:
    """Replaces ``x.jsonl`` by ``x.jsonl.gz``; the same content gives the same bytes."""
    packed = path.with_name(path.name + ".gz")
    partial = packed.with_name(packed.name + PARTIAL)
    with (
        begun(packed, partial),
        path.open("rb") as source,
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as sink,
    ):
        shutil.copyfileobj(source, sink)
    os.replace(partial, packed)
    path.unlink()


def pack(bundle: Bundle) -> None:
    """Compresses transcripts and step logs, so that their names are the ones that they will keep.

    Args:
        bundle: A bundle to which no evidence is added any more.
    """
    for path in bundle.root.glob("arms/*/*.jsonl"):
        compress(path)


def seal(bundle: Bundle) -> str:
    """Packs a bundle and writes its manifest.

    Args:
        bundle: A bundle to which nothing is added any more.

    Returns:
        SHA-256 of the manifest.

    Raises:
        EvidenceError: There is a link in it: what it leads to can change while the bundle stays as it is.
    """
    pack(bundle)
    files = {}
    for name, path in _entries(bundle):
        if path.is_symlink() or not path.is_file():
            raise EvidenceError(f"{name}: is no file of its own", where=str(bundle.root))
        files[name] = sha256_file(path)
    return sha256_file(bundle.write(MANIFEST, files))


def _entries(bundle: Bundle) -> Iterator[tuple[str, Path]]:
    """Everything that a seal covers, by name: all but directories, and links to directories too."""
    for path in sorted(bundle.root.rglob("*")):
        name = path.relative_to(bundle.root).as_posix()
        if name not in _UNSEALED and (path.is_symlink() or not path.is_dir()):
            yield name, path


def verify(bundle: Bundle) -> None:
    """Compares every file with the manifest.

    Args:
        bundle: A sealed bundle.

    Raises:
        EvidenceError: The bundle was never sealed, or a file is missing, extra, changed, a link or outside.
    """
    files = bundle.read(MANIFEST, dict[str, str])
    problems = []
    for name, digest in sorted(files.items()):
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            problems.append(f"{name}: leads out of the bundle")
            continue
        path = bundle.root / name
        below_root = (path, *path.parents)[: len(relative.parts)]
        if any(part.is_symlink() for part in below_root) or not path.is_file():
            problems.append(f"{name}: is missing")
        elif sha256_file(path) != digest:
            problems.append(f"{name}: was changed after the bundle was sealed")
    problems += [f"{name}: is not in the manifest" for name, _ in _entries(bundle) if name not in files]
    if problems:
        raise EvidenceError(
            "; ".join(problems), where=str(bundle.root), advice="Run again; nothing can be made of it."
        )
