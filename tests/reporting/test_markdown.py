"""The Markdown summary: short whatever was found, and nothing that a server says becomes markup."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from qualify.findings import CoverageCell, Finding, Weight
from qualify.reporting.markdown import MOST_LINES, escaped, markdown
from qualify.reporting.outcome import tell_outcome
from qualify.reporting.terminal import console_for
from tests.reporting.judged import HOSTILE, RECORDS, judged

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shown(text: str) -> tuple[str, set[str]]:
    """What a reader of rendered Markdown sees, and the kinds of its tokens."""
    inline = [token for token in RENDERER.parse(text) if token.type == "inline"]
    parts = [child for token in inline for child in token.children or []]
    return "".join(part.content for part in parts), {part.type for part in parts}


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_short_and_says_what_matters(name: str) -> None:
    verdict, _ = judged(name)
    text = markdown(verdict, "bundle-1")
    assert len(text.splitlines()) < MOST_LINES
    assert text.startswith(f"## qualify: {verdict.result}: test\n")
    seen = "\n".join(shown(line)[0] for line in text.splitlines())
    for said in (verdict.subject, "bundle-1", escaped(verdict.reasons[0])[:20]):
        assert said in seen


def test_it_is_short_however_much_was_found() -> None:
    verdict, _ = judged("inconclusive")
    findings = tuple(
        Finding(rule="some", weight=weight, summary=f"{weight} {number}", advice="see\nthe\nlog")
        for number in range(50)
        for weight in Weight
    )
    cells = tuple(
        CoverageCell(name=f"cell {n}", reached="0", required="1", satisfied=False) for n in range(90)
    )
    full = replace(
        verdict,
        reasons=tuple(f"reason {number}\nof many" for number in range(50)),
        findings=findings,
        coverage=cells,
        limitations=tuple("x" * 5000 for _ in range(50)),
    )
    text = markdown(full, "bundle")
    assert len(text.splitlines()) < MOST_LINES
    assert len(text) < 20_000
    assert "and 44 more" in text
    assert "and 82 more" in text


@given(st.text(max_size=80))
def test_text_is_shown_as_it_is_and_is_never_markup(text: str) -> None:
    expected = " ".join(
        "".join(c if c.isprintable() else " " for c in text).replace("\u00a0", " ").split(" ")
    )
    seen, kinds = shown(f"- {escaped(text)}")
    assert kinds <= {"text", "text_special", "entity"}
    assert seen.split() == expected.split()


@pytest.mark.parametrize(
    "text",
    [HOSTILE, "<img src=x onerror=alert(1)>", "# heading", "- item", "1234. item", "a|b", "![p](http://x)"],
)
def test_hostile_text_is_not_markup(text: str) -> None:
    _, kinds = shown(f"- {escaped(text)}")
    assert kinds <= {"text", "text_special", "entity"}
    blocks = [token.type for token in RENDERER.parse(f"- {escaped(text)}") if token.nesting == 1]
    assert blocks == ["bullet_list_open", "list_item_open", "paragraph_open"]
    for link in ("http://", "@all", " #1"):
        assert link not in escaped(text)


def test_the_table_keeps_its_columns() -> None:
    verdict, _ = judged("good")
    cell = CoverageCell(name="a|b", reached=HOSTILE, required="c|d", satisfied=True)
    tokens = RENDERER.parse(markdown(replace(verdict, coverage=(cell,)), "bundle"))
    assert len([token for token in tokens if token.type == "td_open"]) == 3


def test_it_is_appended_to_the_page_of_the_job(tmp_path: Path) -> None:
    page = tmp_path / "summary"
    page.write_text("# of another step\n")
    verdict, _ = judged("good")
    tell_outcome(
        console_for(io.StringIO()),
        verdict,
        "some/bundle-1",
        "summary.txt",
        {"GITHUB_STEP_SUMMARY": str(page)},
    )
    assert page.read_text() == "# of another step\n" + markdown(verdict, "bundle-1") + "\n"


def test_a_page_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    verdict, _ = judged("good")
    where = {"GITHUB_STEP_SUMMARY": str(tmp_path / "missing/summary")}
    tell_outcome(console_for(stream), verdict, "bundle-1", "summary.txt", where)
    assert "verdict: qualified" in stream.getvalue()
    assert "No such file" in stream.getvalue()
