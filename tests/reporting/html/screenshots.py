"""Takes the pictures in docs/screenshots: ``python -m tests.reporting.html.screenshots`` (needs Chromium)."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import sync_playwright

from qualify.findings import Result
from tests.reporting.html.kept import CHROMIUM, SCHEMES, WIDTHS, write_pages

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHOTS = Path(__file__).parents[3] / "docs/screenshots"
HEIGHT = 1000
COLOURS = 48
"""Enough for a page of few colours, and a third of the bytes."""
NAMES = {Result.QUALIFIED: "good", Result.REJECTED: "rejected", Result.INCONCLUSIVE: "inconclusive"}
OPENED = 9
"""The request whose tokens are shown: one that the fault hits."""


def main() -> None:
    """Takes every picture anew."""
    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        pages = write_pages(Path(root))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for result, path in pages.items():
            for scheme in SCHEMES:
                for width in WIDTHS:
                    viewport = {"width": width, "height": HEIGHT}
                    page = browser.new_page(viewport=viewport, color_scheme=scheme)
                    page.goto(path.as_uri())
                    for part, png in taken(page, result).items():
                        save(png, SHOTS / f"{NAMES[result]}{part}-{scheme}-{width}.png")
                    page.close()
        browser.close()


def taken(page: Page, result: Result) -> dict[str, bytes]:
    """Pictures of one page: its first screen, and of runs that were compared what they are for."""
    shots = {"": page.screenshot()}
    if result is not Result.INCONCLUSIVE:
        shots["-figures"] = page.locator(".plots").screenshot()
    if result is Result.REJECTED:
        request = page.locator("details.request").nth(OPENED)
        request.evaluate("each => each.open = true")
        shots["-tokens"] = request.screenshot()
    return shots


def save(png: bytes, path: Path) -> None:
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


if __name__ == "__main__":
    main()
