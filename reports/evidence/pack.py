#!/usr/bin/env python3
"""Packs sealed bundles into one small archive: reports/evidence/pack.py OUT.tar.xz BUNDLE...

The same answers of several arms and bundles are stored once, which needs them uncompressed: transcripts and
step logs are unpacked, and the manifest is written anew for that. The verdict is the one that this version of
qualify gives; the reports that were made of the old one are left out. Nothing else of the evidence changes.
"""

import gzip
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from qualify.evidence.bundle import MANIFEST, Bundle, verify
from qualify.evidence.digests import canonical_json, sha256_file
from qualify.judging import judge_bundle
from qualify.reporting.writers import WRITERS


def unpack(source: Path, target: Path) -> None:
    """Copies a bundle with its JSON lines uncompressed, and judges the copy."""
    verify(Bundle(source))
    shutil.copytree(source, target)
    for path in target.rglob("*.jsonl.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    for name in (MANIFEST, *WRITERS):
        (target / name).unlink(missing_ok=True)
    verdict = judge_bundle(Bundle(target))
    (target / "verdict.json").write_bytes(canonical_json(verdict))
    files = {
        path.relative_to(target).as_posix(): sha256_file(path)
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }
    (target / MANIFEST).write_bytes(canonical_json(files))
    print(f"{source.name}: {verdict.result}")


def add(archive: tarfile.TarFile, path: Path, root: Path) -> None:
    """Adds a file without anything that differs from one machine to the next."""
    entry = archive.gettarinfo(path, path.relative_to(root).as_posix())
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime, entry.mode = 0, 0o644
    with path.open("rb") as stream:
        archive.addfile(entry, stream)


def main(out: Path, bundles: list[Path]) -> None:
    """Packs the bundles."""
    with tempfile.TemporaryDirectory() as work, tarfile.open(out, "w:xz", preset=9) as archive:
        for bundle in bundles:
            unpack(bundle, Path(work) / bundle.name)
        files = [path for path in Path(work).rglob("*") if path.is_file()]
        # files of one kind beside each other: the same answers lie close together
        for path in sorted(files, key=lambda path: (path.name, str(path))):
            add(archive, path, Path(work))
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
