"""Pages of recorded runs of an H200, for whoever opens them in a browser."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from qualify.evidence.bundle import MANIFEST, Bundle
from qualify.findings import Result
from qualify.rendering import read_material
from qualify.reporting.html.page import html_report

EVIDENCE = Path(__file__).parents[3] / "reports/evidence/h200/exact.tar.xz"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SCHEMES = ("light", "dark")
WIDTHS = (1440, 400)


def write_pages(root: Path) -> dict[Result, Path]:
    """Writes pages of a good, a rejected and an inconclusive run: the good one as if it had been cut short.

    Args:
        root: Where the bundles are unpacked; each page lies in its bundle.
    """
    with tarfile.open(EVIDENCE) as archive:
        archive.extractall(root, filter="data")
    (good,), (packed,) = root.glob("ds4-h200-2*"), root.glob("ds4-h200-packed-2*")
    cut = Path(shutil.copytree(good, root / "cut-short"))
    (cut / MANIFEST).unlink()
    shutil.rmtree(cut / "arms/control")
    found = {Result.QUALIFIED: good, Result.REJECTED: packed, Result.INCONCLUSIVE: cut}
    for result, bundle in found.items():
        material = read_material(Bundle(bundle))
        assert material.verdict.result is result
        (bundle / "report.html").write_bytes(html_report(material))
    return {result: bundle / "report.html" for result, bundle in found.items()}
