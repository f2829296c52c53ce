"""The HTML report says what the verdict says, of any bundle, and nothing in a bundle becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from qualify.compare.rows import UNKNOWN
from qualify.findings import CoverageCell, Finding, Result, Weight
from qualify.record import ArmRecord, ArmState, ResolvedConfiguration, RunRecord
from qualify.reporting.html.measured import measure
from qualify.reporting.html.page import html_report
from qualify.reporting.html.plots.common import log_scale
from qualify.reporting.html.plots.heat import _cells
from qualify.reporting.html.plots.serving import timeline
from qualify.reporting.html.svg import drawing
from qualify.reporting.html.tables import nats, share
from qualify.reporting.html.tokens import MOST_LINES, token_view
from qualify.reporting.material import Material
from qualify.runtable import collect
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import POLICY, World, build, no_fault, packed, transcript
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


def with_more_baseline_runs(record: RunRecord, world: World) -> RunRecord:
    """The record with four forced runs of the baseline."""
    runs = dict(record.runs)
    for key in (RunKey(Arm.BASELINE, Decode.FORCED, number) for number in (3, 4)):
        requests = [(name, index) for name, count in world.scenarios.items() for index in range(count)]
        runs[key] = collect(key, [transcript(world, key, *request, no_fault) for request in requests])
    return replace(record, runs=runs)


def test_the_floor_is_the_same_measure_as_the_arms_beside_it(tmp_path):
    made = material(with_more_baseline_runs(build(WORLD), WORLD), tmp_path)
    content = html_report(made)
    figures = Page(content).table("Divergence in nats")
    assert figures["floor"][:2] == ["352", str(6 * 352)]
    mean = {name: float(figures[name][3]) for name in ("floor", "candidate", "control")}
    for arm in made.verdict.comparison.arms:
        shown = mean[arm.arm] - mean["floor"]  # of three digits each
        assert shown == pytest.approx(arm.excess, abs=5e-3 * mean[arm.arm])
    floor, candidate = (Page(content).table("Divergence of floor")[name] for name in ("floor", "candidate"))
    assert float(candidate[2]) == pytest.approx(float(floor[2]), rel=0.1)  # medians, of equal servers


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


def test_the_first_difference_is_where_the_fault_begins():
    record = build(EXACT, candidate=lambda row, token: 1.5 if row == 3 and token >= 7 else 0.0, control=None)
    view = token_view(record, measure(record, POLICY))
    assert view.exact
    assert [item.differs for item in view.requests] == [number == 3 for number in range(10)]
    hit = view.requests[3]
    marked = [line for line in hit.lines if line.first]
    assert [(line.position, line.first) for line in marked if "candidate" in line.first] == [
        (7, ("candidate",))
    ]
    assert [line.distances[0] == "0" for line in hit.lines[:8]] == [True] * 7 + [False]
    assert hit.lines[0].cells[0].tokens == hit.lines[0].cells[1].tokens


def test_distances_beside_tokens_are_those_of_the_runs_that_are_shown():
    record = with_more_baseline_runs(build(WORLD), WORLD)
    measured = measure(record, POLICY)
    view = token_view(record, measured)
    said = {float(line.distances[0]) for item in view.requests for line in item.lines}
    layout = measured.judged[0].aligned.layout
    from_first = layout.distances[:, layout.pairs.index((0, 4))]
    assert said == {float(nats(value)) for value in from_first}
    assert not any(
        line.cells[0].tokens != line.cells[1].tokens and line.distances[0] == "0"
        for item in view.requests
        for line in item.lines
    )


def test_where_there_is_a_floor_nothing_beyond_it_is_not_called_no_difference():
    record = build(WORLD)
    view = token_view(record, measure(record, POLICY))
    quiet = [item for item in view.requests if not item.differs]
    assert quiet
    assert {item.told.split(", ")[0] for item in quiet} == {
        f"candidate: nothing beyond the floor ({view.threshold} nats)"
    }


def test_tokens_computed_beside_a_prefill_belong_to_no_size_of_decode_step():
    record = build(EXACT, candidate=packed)
    steps = record.steps[Arm.CANDIDATE]
    mixed = replace(steps, decode=steps.decode & (np.arange(len(steps.decode)) % 2 == 0))
    series = [
        measure(replace(record, steps={**record.steps, Arm.CANDIDATE: each}), POLICY).series[0]
        for each in (steps, mixed)
    ]
    counts = [int((each.batch == 10).sum()) for each in series]
    assert counts[0] == 2 * 310
    assert 0 < counts[1] < counts[0]
    assert set(series[1].batch.tolist()) == {0, 10}


def test_the_token_view_is_bounded_and_shows_what_differs():
    world = World(scenarios={"mixed": 200}, tokens=16, noise=0.0)
    record = build(
        world, candidate=lambda row, token: 1.5 if row == 190 and token >= 2 else 0.0, control=None
    )
    view = token_view(record, measure(record, POLICY))
    assert sum(len(item.lines) for item in view.requests) <= MOST_LINES
    assert len(view.requests) + len(view.left_out) == 200
    assert "mixed/main/0190" in {item.request_id for item in view.requests}


def test_a_long_answer_is_shown_around_its_first_difference():
    world = World(scenarios={"mixed": 4}, tokens=300, noise=0.0)
    record = build(world, candidate=lambda row, token: 1.5 if token >= 200 else 0.0, control=None)
    view = token_view(record, measure(record, POLICY))
    shown = [line.position for line in view.requests[1].lines]
    assert (shown[0], shown[-1], view.requests[1].left_out) == (192, 287, 204)
    assert [line.position for line in view.requests[1].lines if line.first] == [200]


def test_every_scenario_of_every_arm_is_on_the_timeline_however_many_come_before_it():
    world = World(scenarios={"early": 200, "late": 3}, tokens=2)
    late = {"early": 0.0, "late": 9.0}

    def edit(item):
        judged = item.scenario == "late" or item.index >= 100
        return replace(item, judged=judged, sent_s=item.sent_s + late[item.scenario])

    with drawing():
        plot = timeline(build(world, edit=edit))
    for arm in Arm:
        assert f">{RunKey(arm, Decode.FORCED, 1)}<" in plot.svg
    assert plot.svg.count(">late<") == plot.svg.count(">early<") == 3
    assert plot.told.count("80 of 103 judged requests are drawn") == 3
    judged = [row for row in plot.table.rows if row[2] == "yes"]
    assert judged == list(plot.table.rows[: 3 * 103])
    assert {(row[1], row[0].split("/")[0]) for row in judged} >= {
        (str(RunKey(arm, Decode.FORCED, 1)), "late") for arm in Arm
    }


def test_requests_that_are_not_judged_are_few_bars_on_the_timeline():
    world = World(scenarios={"mixed": 300}, tokens=2)
    with drawing():
        plot = timeline(build(world, edit=lambda item: replace(item, judged=item.index < 5)))
    assert plot.svg.count("f-quiet") < 40


def test_a_row_of_the_heat_map_lies_around_its_number():
    axes = Figure().subplots()
    _cells(axes, np.array([[np.nan, 0.0], [0.5, np.nan]]), (1, 1))
    boxes = {
        tuple(path.get_extents().extents.tolist()) for drawn in axes.collections for path in drawn.get_paths()
    }
    assert boxes == {(0.5, -0.5, 1.5, 0.5), (-0.5, 0.5, 0.5, 1.5)}


def test_distances_lie_where_they_were_computed():
    record = build(EXACT, candidate=packed)
    (candidate, _) = measure(record, POLICY).series
    assert set(candidate.row[candidate.token == 0].tolist()) == {UNKNOWN}
    computed = candidate.row != UNKNOWN
    assert ((candidate.nats > 0) == (candidate.row > 0)).all()
    assert set(candidate.batch[computed].tolist()) == {10}
    assert candidate.seconds.min() == 1.0
    assert candidate.seconds.max() == 2.0


@pytest.mark.parametrize(
    ("candidate", "control"), [(1e-7, None), (1e-7, 1e-5), (1e-6, 1.5)], ids=["alone", "weak", "usual"]
)
def test_however_small_a_difference_is_it_is_drawn_and_not_as_zero(tmp_path, candidate, control):
    record = build(
        EXACT,
        candidate=lambda row, token: candidate if row == 3 and token > 3 else 0.0,
        control=None if control is None else lambda row, token: control if row and token else 0.0,
    )
    made = material(record, tmp_path)
    assert made.verdict.result is Result.REJECTED
    assert 0 < made.verdict.comparison.arms[0].spread.largest < 1e-9
    assert "candidate: 584 of 640 exactly 0" in " ".join(Page(html_report(made)).text.split())


def test_only_exact_zeros_are_drawn_on_their_line():
    values = np.array([1.5e-12, 0.0, 2.58])
    scale = log_scale(Figure().subplots(), [values], "nats")
    assert (scale.place(values) == scale.zero).tolist() == [False, True, False]
    assert scale.place(values[::2]).tolist() == values[::2].tolist()


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (1e-12, "1e-12"), (0.0123456, "0.0123")])
def test_only_an_exact_zero_reads_as_zero(value, text):
    assert nats(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "100.0%"), (0.99999, "over 99.9%"), (0.0, "0.0%"), (1e-6, "under 0.1%")]
)
def test_only_all_reads_as_all(value, text):
    assert share(value) == text


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
