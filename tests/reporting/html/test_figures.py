"""Plots and token view of the HTML report: one measure, everything drawn, and each where it belongs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from qualify.compare.rows import UNKNOWN
from qualify.findings import Result
from qualify.record import RunRecord
from qualify.reporting.html.measured import measure
from qualify.reporting.html.page import html_report
from qualify.reporting.html.plots.common import log_scale
from qualify.reporting.html.plots.heat import _cells
from qualify.reporting.html.plots.serving import timeline
from qualify.reporting.html.svg import drawing
from qualify.reporting.html.tables import nats, share
from qualify.reporting.html.tokens import MOST_LINES, token_view
from qualify.runtable import collect
from qualify.transcript import Arm, Decode, RunKey
from tests.judgefactory import POLICY, World, build, no_fault, packed, transcript
from tests.reporting.html.material import Page, material

WORLD = World(scenarios={"alone": 1, "mixed": 10})
EXACT = World(scenarios={"mixed": 10}, noise=0.0)


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
    world = World(scenarios={"early": 200, "late": 1}, tokens=2)
    late = {"early": 0.0, "late": 9.0}

    def edit(item):
        judged = item.scenario == "late" or item.index >= 100
        return replace(item, judged=judged, sent_s=item.sent_s + late[item.scenario])

    with drawing():
        plot = timeline(build(world, edit=edit))
    for arm in Arm:
        assert f">{RunKey(arm, Decode.FORCED, 1)}<" in plot.svg
    assert plot.svg.count(">late<") == plot.svg.count(">early<") == 3
    assert plot.told.count("80 of 101 judged requests are drawn") == 3
    judged = [row for row in plot.table.rows if row[2] == "yes"]
    assert judged == list(plot.table.rows[: 3 * 101])
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
