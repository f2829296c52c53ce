"""The HTML report says what the verdict says, of any bundle, and nothing in a bundle becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from qualify.findings import CoverageCell, Finding, Result, Weight
from qualify.record import ArmRecord, ArmState, ResolvedConfiguration, RunRecord
from qualify.reporting.html.page import html_report
from qualify.reporting.html.tables import nats
from qualify.reporting.material import Material
from qualify.transcript import Arm
from tests.judgefactory import POLICY, World, build, packed
from tests.reporting.html.material import Page, material

WORLD = World(scenarios={"alone": 1, "mixed": 10})
EXACT = World(scenarios={"mixed": 10}, noise=0.0)
HOSTILE = (
    "</style></title>--><script>alert(1)</script><img src=http://x onerror=alert(2)> $\\frac{$ {{ 1 }} "
    "\x00\x1b\ufffe"
)


def nothing_served() -> RunRecord:
    record = build(WORLD)
    arms = {arm: ArmRecord(arm=arm, state=ArmState.NOT_STARTED) for arm in record.arms}
    found = Finding(rule="inspect-fix", weight=Weight.DEFECT, summary="The fix is not in the image.")
    return replace(
        record, runs={}, steps={}, arms=arms, inspections=(found,), incomplete=("nothing was served",)
    )


RECORDS = {
    Result.QUALIFIED: lambda: build(WORLD),
    Result.REJECTED: lambda: build(WORLD, candidate=packed),
    Result.INCONCLUSIVE: lambda: build(WORLD, control=None),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[Result, tuple[Material, bytes]]:
    made = {
        result: material(record(), tmp_path_factory.mktemp("bundle")) for result, record in RECORDS.items()
    }
    return {result: (each, html_report(each)) for result, each in made.items()}


@pytest.mark.parametrize("result", RECORDS)
def test_the_page_says_what_the_verdict_says(result, pages):
    made, content = pages[result]
    assert made.verdict.result is result
    page = Page(content)
    for said in (
        *made.verdict.reasons,
        *made.verdict.limitations,
        *(item.summary for item in made.verdict.findings),
        *(item.advice for item in made.verdict.findings),
        *(f"{value}" for _, value in made.verdict.scope),
        made.verdict.subject,
        made.plan.plan_id,
    ):
        assert said in page.text
    spreads = {"floor": made.verdict.comparison.floor}
    spreads |= {arm.arm: arm.spread for arm in made.verdict.comparison.arms}
    figures = page.table("Divergence in nats")
    for name, spread in spreads.items():
        pairs = 1 if name == "floor" else 2  # with each of the two baseline runs
        assert figures[name][:2] == [str(spread.positions), str(pairs * spread.positions)]
        assert page.table("Divergence of floor")[name][0] == str(pairs * spread.positions)
    floor = made.verdict.comparison.floor
    assert figures["floor"][2:6] == [str(floor.differ), *map(nats, (floor.mean, floor.p99, floor.largest))]
    for arm in made.verdict.comparison.arms:
        assert figures[arm.arm][-2] == nats(arm.excess)
    coverage = page.table("Measured")
    for cell in made.verdict.coverage:
        told = {True: "met", False: "missed", None: "only shown"}[cell.satisfied]
        assert coverage[cell.name][:3] == [cell.reached, cell.required or "not required", told]


def test_verdict_and_scope_come_first(pages):
    text = pages[Result.REJECTED][1].decode()
    order = ['class="verdict rejected"', "Scope:", 'id="tested"', 'id="why"', 'id="control"', 'id="figures"']
    places = [text.index(each) for each in [*order, 'id="coverage"', 'id="tokens"', 'id="evidence"']]
    assert places == sorted(places)


def test_the_same_material_gives_the_same_bytes(pages, tmp_path):
    again = html_report(material(RECORDS[Result.QUALIFIED](), tmp_path))
    assert again == pages[Result.QUALIFIED][1]


def test_a_bundle_without_transcripts_has_its_page(tmp_path):
    made = material(nothing_served(), tmp_path)
    page = Page(html_report(made))
    assert made.verdict.result is Result.REJECTED
    assert "The fix is not in the image." in page.text
    assert "Nothing could be compared" in page.text
    assert "nothing was served" in page.text
    assert "tokens" not in page.ids
    assert "svg" not in page.tags


def test_cards_are_told_from_their_samples(tmp_path):
    samples = tmp_path / "arms/candidate/gpu.csv"
    samples.parent.mkdir(parents=True)
    samples.write_text(
        "timestamp, index, memory.used [MiB], power.draw [W], name\n"
        "2026/12/01 10:00:00, 0, 900, 71.5, NVIDIA H200\n"
        "2026/12/01 10:00:01, 0, 1200, [N/A], NVIDIA H200\n"
        "2026/12/01 10:00:01, 0, 12"
    )
    page = Page(html_report(material(build(WORLD), tmp_path)))
    assert page.table("Graphics cards") == {
        "arm": ["card", "name", "memory, MiB", "clock, MHz", "power, W", "samples"],
        "candidate": ["0", "NVIDIA H200", "1200", "not recorded", "71.5", "3"],
    }


def test_nothing_from_a_bundle_is_markup(tmp_path):
    def edit(item):
        scenario = f"mixed{HOSTILE}"
        return replace(item, request_id=f"{scenario}/{item.index}", scenario=scenario)

    record = build(World(scenarios={"mixed": 10}), candidate=packed, edit=edit)
    arms = {
        arm: replace(entry, detail=HOSTILE, log_tail=(HOSTILE,), fault=HOSTILE)
        for arm, entry in record.arms.items()
    }
    scenarios = tuple(
        replace(
            each,
            name=f"mixed{HOSTILE}",
            requests=tuple(
                replace(item, request_id=f"mixed{HOSTILE}/{number}", scenario=f"mixed{HOSTILE}")
                for number, item in enumerate(each.requests)
            ),
        )
        for each in record.scenarios
    )
    found = Finding(
        rule=HOSTILE,
        weight=Weight.DEFECT,
        summary=HOSTILE,
        advice=HOSTILE,
        scenario=HOSTILE,
        evidence=(HOSTILE, "javascript:alert(3)", "arms/candidate/odd #?.log", "../outside"),
        request_ids=(HOSTILE,),
    )
    record = replace(
        record,
        release=HOSTILE,
        subject=HOSTILE,
        scope=((HOSTILE, HOSTILE),),
        replay=HOSTILE,
        arms=arms,
        scenarios=scenarios,
        inspections=(found,),
        incomplete=(HOSTILE,),
    )
    (tmp_path / "arms/candidate").mkdir(parents=True)
    for name in ("odd #?.log", "<img src=x>.log", 'javascript:alert(1)"'):
        (tmp_path / "arms/candidate" / name).write_text("x")
    (tmp_path / "arms/candidate/gpu.csv").write_bytes(
        f"index, {HOSTILE}\n{HOSTILE},,,\n".encode() + b"\xff\0"
    )
    (tmp_path / "arms/outside.log").symlink_to("/etc/hostname")
    content = html_report(material(record, tmp_path))
    page = Page(content)
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "image"}
    assert not [each for each in page.attributes if each[1].startswith("on") or each[1] == "style"]
    assert {link.split("/")[0] for link in page.links() if not link.startswith("#")} == {"."}
    assert "./arms/candidate/odd%20%23%3F.log" in page.links()
    assert "outside.log" not in "".join(page.links())
    assert HOSTILE.split("\x00")[0] in page.text
    assert not re.search(rb"[\x00-\x08\x0b-\x1f]", content)


def test_only_the_style_that_is_there_is_allowed(pages):
    text = pages[Result.QUALIFIED][1].decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1].replace("&#39;", "'")
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"https?:|url\((?!#)|@import", text)


def test_ids_are_unique_and_anchors_lead_somewhere(pages):
    page = Page(pages[Result.REJECTED][1])
    assert len(set(page.ids)) == len(page.ids)
    anchors = {link[1:] for link in page.links() if link.startswith("#")}
    assert any(anchor.startswith("request-") for anchor in anchors)
    assert anchors <= set(page.ids)


def test_every_plot_has_its_words_and_its_table(pages):
    text = pages[Result.REJECTED][1].decode()
    figures = re.findall(r"<figure.*?</figure>", text, re.S)
    assert len(figures) == 6
    for figure in figures:
        (named,) = re.findall(r'<svg viewBox="[^"]*" role="img" aria-labelledby="([^"]*)"', figure)
        assert all(f'id="{each}"' in figure for each in named.split())
        assert "<caption>" in figure
        assert "<th scope=" in figure


def test_steps_that_were_not_recorded_are_told_as_estimates(tmp_path):
    record = replace(build(WORLD), steps={})
    text = Page(html_report(material(record, tmp_path))).text
    assert "rows estimated" in text
    assert "Graph replays" not in text
    assert Arm.CANDIDATE in text


def test_a_cell_that_the_policy_lets_go_is_a_limitation_and_names_its_scenario(tmp_path):
    made = material(RECORDS[Result.QUALIFIED](), tmp_path)
    cell = CoverageCell(name="preemptions", reached="0", required="1", satisfied=False, scenario="mixed")
    said = Finding(rule="coverage", weight=Weight.NOTE, scenario="mixed", summary=cell.shortfall)
    missed = replace(cell, name="rows")
    verdict = replace(
        made.verdict,
        coverage=(cell, missed),
        findings=(*made.verdict.findings, said),
    )
    table = Page(html_report(replace(made, verdict=verdict))).table("Measured")
    assert table["mixed: preemptions"][2] == "not reached, a limitation"
    assert table["mixed: rows"][2] == "missed"


def test_a_limit_is_not_one_of_nats_beside_one_of_probability(tmp_path):
    page = Page(html_report(material(build(EXACT, candidate=packed), tmp_path)))
    limits = {row[0]: row[5] for row in page.rows("What each rule found: candidate")[1:]}
    assert limits["exact"] == "any difference"
    assert limits["ceiling"] == f"{POLICY.decision.ceiling_kld:.2g} nats"
    assert 0 < float(limits["shift"]) < 0.01


def test_what_servers_said_of_themselves_is_told(tmp_path):
    said = {
        Arm.CANDIDATE: ResolvedConfiguration(
            graph_mode="FULL_DECODE_ONLY", capture_sizes=(1, 2), enforce_eager=False
        ),
        Arm.BASELINE: ResolvedConfiguration(why="the server does not say"),
    }
    page = Page(html_report(material(replace(build(WORLD), configurations=said), tmp_path)))
    table = page.table("What each server said")
    assert table["candidate"][:3] == ["FULL_DECODE_ONLY", "1, 2", "no"]
    assert table["baseline"][:3] == ["the server does not say", "none", "not known"]
