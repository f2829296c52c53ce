"""The HTML reports of real runs in a browser: quiet, offline, accessible, and no wider than the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qualify.findings import Result
from tests.reporting.html.kept import CHROMIUM, SCHEMES, WIDTHS, write_pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

GRAVE = {"serious", "critical"}
MOST_BYTES = 3_000_000
"""A page is meant to be sent and kept; a gate run's stays under this."""


@dataclass
class Seen:
    """What a page did while it was open."""

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[Result, Path]:
    return write_pages(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "Chromium is missing: apt-get install chromium, or name one in CHROMIUM"
    with sync_playwright() as playwright:
        # its sandbox needs rights that containers do not have; the pages are the project's own
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Browser, path: Path, scheme: str = "light", width: int = 1440) -> tuple[Page, Seen]:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = Seen()
    page.on("console", lambda message: seen.console.append(message.text))
    page.on("pageerror", lambda error: seen.console.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(path.as_uri())
    return page, seen


def violations(page: Page) -> list[dict[str, Any]]:
    from axe_playwright_python.sync_playwright import Axe

    # what is folded away is not checked, only searched through, which takes most of the time
    page.evaluate("document.querySelectorAll('details.request:not([open])').forEach(each => each.remove())")
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        {"id": each["id"], "where": [node["html"][:200] for node in each["nodes"][:3]]}
        for each in found
        if each["impact"] in GRAVE
    ]


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("result", list(Result))
def test_page(browser, pages, result, scheme, width):
    page, seen = opened(browser, pages[result], scheme, width)
    assert overflow(page) == 0
    # one of each kind that is folded away is looked at too
    for kind in ("#main > section > details", ".finding details", "figure details", "details.request"):
        page.evaluate("kind => document.querySelector(kind)?.setAttribute('open', '')", kind)
    assert overflow(page) == 0
    assert violations(page) == []
    assert seen.requests == [pages[result].as_uri()]
    assert seen.console == []
    page.close()


def test_a_page_is_small(pages):
    assert {result: path.stat().st_size < MOST_BYTES for result, path in pages.items()} == dict.fromkeys(
        Result, True
    )


def test_colours_follow_the_scheme(browser, pages):
    colours = set()
    for scheme in SCHEMES:
        page, _ = opened(browser, pages[Result.REJECTED], scheme)
        colours.add(
            page.evaluate(
                "[document.body, ...document.querySelectorAll('.plot text, .plot .f-candidate, .f-heat6')]"
                ".map(each => getComputedStyle(each).backgroundColor + getComputedStyle(each).fill).join()"
            )
        )
        page.close()
    assert len(colours) == 2


def test_the_keyboard_reaches_tokens(browser, pages):
    page, _ = opened(browser, pages[Result.REJECTED])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator("details.request summary").nth(9).focus()
    assert not page.locator("details.request .scroll").nth(9).is_visible()
    page.keyboard.press("Enter")
    assert page.locator("details.request .scroll").nth(9).is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region"
    page.close()


def test_a_finding_leads_to_the_tokens_of_its_requests(browser, pages):
    page, _ = opened(browser, pages[Result.REJECTED])
    page.evaluate("document.querySelectorAll('.finding details').forEach(each => each.open = true)")
    link = page.locator(".finding.defect a[href^='#request-']").first
    target = page.locator(link.get_attribute("href"))
    assert not target.is_visible()
    link.click()
    assert target.is_visible()
    page.close()


def test_a_page_prints(browser, pages):
    page, _ = opened(browser, pages[Result.QUALIFIED], "dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        (("--quiet: #565f69", "--quiet: #b9bec4"), "color-contrast"),
        (('<html lang="en">', "<html>"), "html-has-lang"),
        (
            ('<main id="main">', '<main id="main"><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">'),
            "image-alt",
        ),
    ],
)
def test_the_checker_notices(browser, pages, tmp_path, change, noticed):
    broken = without_policy(pages[Result.QUALIFIED], tmp_path, change)
    page, _ = opened(browser, broken)
    assert noticed in {each["id"] for each in violations(page)}
    page.close()


def test_overflow_is_noticed(browser, pages, tmp_path):
    broken = without_policy(pages[Result.QUALIFIED], tmp_path, (".scroll { overflow-x: auto;", ".scroll {"))
    page, _ = opened(browser, broken, width=400)
    assert overflow(page) > 0
    page.close()


def test_what_is_loaded_from_elsewhere_is_noticed(browser, pages, tmp_path):
    image = '<main id="main"><img alt="" src="http://127.0.0.1:9/x.png">'
    broken = without_policy(pages[Result.QUALIFIED], tmp_path, ('<main id="main">', image))
    page, seen = opened(browser, broken)
    assert "http://127.0.0.1:9/x.png" in seen.requests
    assert seen.console
    page.close()


def test_the_policy_lets_nothing_load_or_run(browser, pages, tmp_path):
    added = (
        '<main id="main"><img alt="" src="http://127.0.0.1:9/x.png"><script>document.title = "ran"</script>'
    )
    text = pages[Result.QUALIFIED].read_text().replace('<main id="main">', added)
    broken = tmp_path / "report.html"
    broken.write_text(text)
    page, seen = opened(browser, broken)
    assert page.title() != "ran"
    assert any("Content Security Policy" in line for line in seen.console)
    page.close()


def without_policy(page: Path, folder: Path, change: tuple[str, str]) -> Path:
    """A page with something wrong in it and without the policy that would keep it from harm."""
    text = page.read_text()
    assert change[0] in text
    start = text.index('<meta http-equiv="Content-Security-Policy"')
    text = text[:start] + text[text.index(">", start) + 1 :]
    broken = folder / "report.html"
    broken.write_text(text.replace(*change))
    return broken
