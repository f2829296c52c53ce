"""Each rule finds what it is for, and something that no other rule finds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from qualify.compare.extremes import extreme_test, fit_tail, rare_jump
from qualify.compare.figures import Evidence
from qualify.compare.pairing import Layout
from qualify.compare.power import margin, power
from qualify.compare.rules import RUN, ask, run_limits, section
from qualify.policy import DecisionPolicy

Floats = npt.NDArray[np.float64]
POLICY = DecisionPolicy()
PAIRS = ((0, 1), (0, 2), (1, 2))


def layout_of(floor: Floats, left: Floats, right: Floats) -> Layout:
    """Two baseline runs and a subject; each argument is float64 [U, T], divergences of one pair."""
    requests, tokens = floor.shape
    return Layout(
        runs=3,
        starts=np.arange(requests + 1) * tokens,
        pairs=PAIRS,
        distances=np.stack([floor.ravel(), left.ravel(), right.ravel()], axis=1),
        scenarios=np.full(requests, "some"),
        asked=np.full(requests, tokens),
    )


def noisy(requests: int, tokens: int = 40, seed: int = 0, scale: float = 0.003) -> list[Floats]:
    random = np.random.default_rng(seed)
    return [random.gamma(4.0, scale / 4.0, (requests, tokens)) for _ in range(3)]


def fired(layout: Layout, masks: dict[str, npt.NDArray[np.bool_]] | None = None) -> list[str]:
    return [item.rule for item in ask(section(RUN, layout, masks or {}), POLICY) if item.fired]


def evidence(layout: Layout, rule: str) -> Evidence:
    (found,) = [item for item in ask(section(RUN, layout, {}), POLICY) if item.rule == rule]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_right_subject_is_not_found(seed: int) -> None:
    assert fired(layout_of(*noisy(30, seed=seed))) == []


def test_exact_alone_sees_one_position() -> None:
    silent = np.zeros((30, 40))
    subject = silent.copy()
    subject[17, 39] = 1e-9
    layout = layout_of(silent, subject, subject)
    assert fired(layout) == ["exact"]
    found = evidence(layout, "exact")
    assert (found.hits, found.of) == (1, 30)
    assert found.p == pytest.approx(0.148, abs=0.002), (
        "what right servers that differ now and then would show"
    )
    assert fired(layout_of(silent, silent, silent)) == []


@pytest.mark.parametrize("noise", [2e-14, 2e-8])
def test_one_negligible_difference_in_the_floor_does_not_blind_it(noise: float) -> None:
    floor, same = np.zeros((30, 40)), np.zeros((30, 40))
    floor[3, 3] = noise
    hit = struck(same, [17], 0.01)
    assert fired(layout_of(floor, hit, hit)) == ["exact"]
    assert fired(layout_of(floor, floor, same)) == []
    slight = struck(same, range(30), 0.0002)
    assert fired(layout_of(floor, slight, slight)) == []
    found = power(section(RUN, layout_of(floor, same, same), {}).whole, run_limits(POLICY))
    assert found.needed == 1
    factor = margin(section(RUN, layout_of(floor, hit, hit), {}), POLICY)
    assert factor == pytest.approx(0.01 / 0.00024, rel=0.01)


@pytest.mark.parametrize("seed", range(10))
def test_negligible_noise_with_a_long_tail_is_not_found(seed: int) -> None:
    """Right runs whose floor shows nothing that matters, and which go beyond that now and then."""
    random = np.random.default_rng(seed)
    floor, left, right = (np.minimum(1e-6 * random.pareto(1.0, (30, 40)), 0.1) for _ in range(3))
    floor = np.minimum(floor, 0.0002)
    near = np.minimum(left, right)
    near[0, 0] = 0.0003
    assert fired(layout_of(floor, near, near)) == []


def test_a_part_that_is_silent_in_a_run_that_is_not_needs_a_difference_that_matters() -> None:
    silent = np.zeros((8, 40))
    for nats, seen in ((1e-9, []), (0.01, ["exact"])):
        subject = struck(silent, [2], nats)
        part = section("eight", layout_of(silent, subject, subject), {}, run_largest=1e-9)
        assert [item.rule for item in ask(part, POLICY) if item.fired] == seen


def test_shift_alone_sees_a_small_difference_everywhere() -> None:
    floor, left, right = noisy(30)
    assert fired(layout_of(floor, left + 0.0012, right + 0.0012)) == ["shift"]


def test_a_sure_but_negligible_shift_is_not_found() -> None:
    floor, left, right = noisy(30, scale=1e-6)
    layout = layout_of(floor, left * 20, right * 20)
    assert fired(layout) == []
    assert (evidence(layout, "shift").p or 1) < 1e-9
    assert fired(layout_of(floor, left * 1000, right * 1000)) != []


def struck(values: Floats, requests: Sequence[int], nats: float) -> Floats:
    values = values.copy()
    values[list(requests), 3] += nats
    return values


def test_tail_alone_sees_some_requests_a_little_beyond_the_floor() -> None:
    floor, left, right = noisy(200)
    hit, nats = range(24), 0.012
    assert fired(layout_of(floor, struck(left, hit, nats), struck(right, hit, nats))) == ["tail"]


def test_extreme_alone_sees_few_requests_far_beyond_the_floor() -> None:
    floor, left, right = noisy(60)
    hit, nats = range(8), 0.5
    assert fired(layout_of(floor, struck(left, hit, nats), struck(right, hit, nats))) == ["extreme"]
    assert fired(layout_of(floor, struck(left, [0], nats), struck(right, [0], nats))) == []


def test_extreme_respects_a_long_tail() -> None:
    """Most requests lie twice beyond a floor whose tail is so long that this is to be expected."""
    random = np.random.default_rng(5)
    watched = np.full(20, 40.0)
    tail = fit_tail(random.pareto(0.8, 60))
    assert tail is not None
    largest = np.full(20, 2.1 * tail.largest)
    assert rare_jump(20, watched, 2 * watched) < 1e-6
    assert extreme_test(tail, largest, watched, 2 * watched).p > 0.5


def test_ceiling_alone_sees_one_request_gone_wrong() -> None:
    floor, left, right = noisy(30)
    left[4], right[4] = 0.2, 0.2
    layout = layout_of(floor, left, right)
    assert fired(layout) == ["ceiling"]
    assert evidence(layout, "ceiling").hits == 1


def test_ceiling_is_void_where_the_floor_is_beyond_it_and_deaf_to_one_wild_position() -> None:
    floor, left, right = noisy(30)
    for values in (floor, left, right):
        values[4] = 0.2
    assert fired(layout_of(floor, left, right)) == []
    floor, left, right = noisy(30)
    left[4, 7], right[4, 7] = 50.0, 50.0
    assert fired(layout_of(floor, left, right)) == []


def in_one_stratum() -> tuple[Layout, npt.NDArray[np.bool_]]:
    """A shift in 30 of 600 requests."""
    floor, left, right = noisy(600, tokens=8)
    inside = np.zeros((600, 8), dtype=bool)
    inside[:30] = True
    return layout_of(floor, left + 0.003 * inside, right + 0.003 * inside), inside.ravel()


def test_a_fault_in_one_stratum_does_not_drown() -> None:
    layout, inside = in_one_stratum()
    assert fired(layout) == []
    assert "shift" in fired(layout, {"row 3": inside, "the rest": ~inside})


def test_one_baseline_run_gone_astray_does_not_hide_or_make_a_fault() -> None:
    floor, left, right = noisy(30)
    astray = floor + 0.5, left + 0.5, right
    assert fired(layout_of(*astray)) == []
    assert "shift" in fired(layout_of(floor + 0.5, left + 1.0, right + 1.0))


def test_requests_that_share_no_position_decide_nothing() -> None:
    floor, left, right = noisy(30)
    right[:] = np.nan
    layout = layout_of(floor, left + 1.0, right)
    assert evidence(layout, "shift").of == 0
    assert evidence(layout, "shift").p == 1.0


def test_margin_says_how_much_weaker_the_fault_could_be() -> None:
    floor, left, right = noisy(30)
    sections = section(RUN, layout_of(floor, left + 0.3, right + 0.3), {})
    factor = margin(sections, POLICY)
    assert factor is not None
    assert factor > 20
    for times, seen in ((0.98, True), (1.03, False)):
        weaker = sections.weaker(factor * times)
        assert any(item.fired for item in ask(weaker, POLICY)) is seen
    assert margin(section(RUN, layout_of(floor, left, right), {}), POLICY) is None
    silent = np.zeros((30, 40))
    assert margin(section(RUN, layout_of(silent, left, right), {}), POLICY) is None


def test_margin_of_what_only_a_stratum_shows() -> None:
    layout, inside = in_one_stratum()
    factor = margin(section(RUN, layout, {"row 3": inside}), POLICY)
    assert factor is not None
    assert 1 <= factor < 3


def test_power_is_what_a_fault_put_in_would_meet() -> None:
    floor, left, right = noisy(60)
    limits = run_limits(POLICY)
    found = power(section(RUN, layout_of(floor, left, right), {}).whole, limits)
    assert found.needed is not None
    for hits, seen in ((found.needed, True), (found.needed - 1, False)):
        layout = layout_of(floor, struck(left, range(hits), 900.0), struck(right, range(hits), 900.0))
        rules = [rule for rule in fired(layout) if rule in ("tail", "extreme")]
        assert bool(rules) is seen
    assert found.share is not None
    assert found.needed / 60 < found.share < 0.5
    assert found.gentle is not None
    for times, seen in ((1.1, True), (0.8, False)):
        shift = found.gentle * times
        base = layout_of(floor, left, right)
        start = section(RUN, base, {}).whole.excess
        layout = layout_of(floor, left + shift - start, right + shift - start)
        assert ("shift" in fired(layout)) is seen


def test_power_does_not_drown_in_equal_faults() -> None:
    """Too few noisy positions for a tail, so `tail` alone decides: 17 of 33 distinct ones are found."""
    floor, silent = np.zeros((33, 40)), np.zeros((33, 40))
    floor[:2, :2] = 0.003
    found = power(section(RUN, layout_of(floor, silent, silent), {}).whole, run_limits(POLICY))
    assert found.needed is not None
    assert found.needed <= 17
    hits = range(found.needed)
    far = silent.copy()
    far[list(hits), 3] = 0.5 + 0.01 * np.arange(found.needed)
    assert fired(layout_of(floor, far, far)) != []


def test_power_of_an_exact_and_of_a_hopeless_run() -> None:
    silent = np.zeros((12, 10))
    limits = run_limits(POLICY)
    exact = power(section(RUN, layout_of(silent, silent, silent), {}).whole, limits)
    assert (exact.needed, exact.gentle) == (1, 0.0)
    assert exact.share == pytest.approx(1 - 0.05 ** (1 / 12), abs=1e-5)
    hopeless = power(section(RUN, layout_of(*noisy(2)), {}).whole, limits)
    assert (hopeless.needed, hopeless.share, hopeless.gentle) == (None, None, None)
