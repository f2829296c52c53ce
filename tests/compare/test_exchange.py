from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from qualify.compare.exchange import shift_test, tail_test
from qualify.compare.extremes import extreme_test, fit_tail, rare_jump


def test_shift_counts_units_where_the_subject_is_strictly_farthest() -> None:
    scores = np.array(
        [[0.0, 0.0, 0.0], [1.0, 1.0, 2.0], [2.0, 1.0, 1.0], [1.0, 2.0, 2.0], [np.nan, 1.0, 2.0]]
    )
    test = shift_test(scores)
    assert (test.odd, test.decided) == (1, 2)
    assert test.p == pytest.approx(stats.binom.sf(0, 2, 1 / 3))


def test_all_units_odd_is_the_smallest_p() -> None:
    scores = np.tile([1.0, 1.0, 2.0], (10, 1))
    assert shift_test(scores).p == pytest.approx(3.0**-10)
    assert shift_test(np.tile([1.0, 1.0, 1.0, 2.0], (10, 1))).p == pytest.approx(4.0**-10)


def test_nothing_to_decide_is_no_evidence() -> None:
    for scores in (np.zeros((5, 3)), np.zeros((0, 3)), np.full((5, 3), np.nan)):
        assert shift_test(scores).p == 1.0
    assert tail_test(np.zeros((5, 3))).p == 1.0


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_p_is_a_probability_under_exchangeable_runs(runs: int) -> None:
    """A test at level x rejects right subjects at most with probability x, whatever the noise is like."""
    random = np.random.default_rng(runs)
    for noise in (random.standard_normal, random.standard_cauchy):
        trials = [np.abs(noise((12, runs))) for _ in range(2000)]
        for test in (shift_test, tail_test):
            p = np.array([test(scores).p for scores in trials])
            for level in (0.01, 0.05, 0.2):
                hits = int((p <= level).sum())
                assert stats.binomtest(hits, len(p), level, alternative="greater").pvalue > 1e-4


def test_tail_sees_few_extreme_units_that_shift_cannot() -> None:
    random = np.random.default_rng(1)
    scores = random.uniform(0.9, 1.1, (200, 3))
    scores[:16, 2] += 10
    assert shift_test(scores).p > 0.001
    assert tail_test(scores).p == pytest.approx(6 * 3.0**-16)


def test_tail_exponent_is_recovered_and_never_understated() -> None:
    random = np.random.default_rng(2)
    above = 0
    for _ in range(200):
        tail = fit_tail(random.pareto(2.0, 1000) + 1)
        assert tail is not None
        above += tail.exponent >= 0.5
        assert 0.4 < tail.exponent < 1.0
    assert above >= 190


@pytest.mark.parametrize("floor", [np.zeros(0), np.zeros(1000), np.ones(20)])
def test_floor_without_a_tail_gives_none(floor: np.ndarray) -> None:  # type: ignore[type-arg]
    tail = fit_tail(floor)
    assert tail is None or tail.exponent > 0
    if not floor.any():
        assert tail is None
        assert extreme_test(None, np.ones(3), np.ones(3), np.ones(3)).p == 1.0


def test_rare_jump_is_the_worst_case_over_rates() -> None:
    requests = np.full(20, 40.0)
    bound = rare_jump(6, requests, 2 * requests)
    for rate in np.geomspace(1e-5, 0.1, 60):
        chance = 1 - np.exp(-rate * 40)
        exact = np.exp(-rate * 2 * 40 * 20) * stats.binom.sf(5, 20, chance)
        assert exact <= bound * 1.02
    assert rare_jump(7, requests, 2 * requests) < bound < rare_jump(5, requests, 2 * requests)
    assert rare_jump(6, requests, 4 * requests) < bound


def test_extreme_needs_several_requests_far_beyond_the_floor() -> None:
    random = np.random.default_rng(3)
    floor = random.exponential(1.0, 800)
    tail = fit_tail(floor)
    watched = np.full(20, 40.0)
    near = np.full(20, floor.max() * 1.5)
    assert extreme_test(tail, near, watched, 2 * watched).p == 1.0
    p = []
    for hits in (1, 3, 8):
        largest = np.where(np.arange(20) < hits, floor.max() * 10, 0.1)
        p.append(extreme_test(tail, largest, watched, 2 * watched).p)
    assert p[0] > 0.1
    assert p[2] < 1e-4
    assert p == sorted(p, reverse=True)


def test_heavy_tails_are_not_mistaken_for_faults() -> None:
    random = np.random.default_rng(4)
    watched = np.full(40, 40.0)
    for draw in (lambda size: random.pareto(1.5, size), lambda size: random.lognormal(0, 2, size)):
        for _ in range(300):
            tail = fit_tail(draw(1600))
            largest = draw((40, 40)).max(axis=1)
            assert extreme_test(tail, largest, watched, 2 * watched).p > 1e-4
