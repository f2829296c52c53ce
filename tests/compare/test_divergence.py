from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.compare.divergence import REST_FLOOR, finite, lists_any, symmetric_kld
from qualify.runtable import NO_TOKEN

Listed = list[tuple[int, float]]


def arrays(*positions: Listed) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    width = max(len(listed) for listed in positions)
    ids = np.full((len(positions), width), NO_TOKEN, dtype=np.int32)
    logprobs = np.full((len(positions), width), np.nan, dtype=np.float32)
    for number, listed in enumerate(positions):
        for rank, (token, logprob) in enumerate(listed):
            ids[number, rank], logprobs[number, rank] = token, logprob
    return ids, logprobs


def one_way(base: Listed, other: Listed) -> float:
    """The formula written out: listed tokens, the bound for missing ones, and the rest bucket."""
    lowest = min(value for _, value in base + other)
    known = dict(other)
    p = {token: math.exp(value) for token, value in base}
    q = {token: math.exp(known.get(token, lowest)) for token in p}
    inside = sum(p[token] * math.log(p[token] / q[token]) for token in p)
    rest_p, rest_q = (max(1 - sum(mass.values()), REST_FLOOR) for mass in (p, q))
    return max(inside + rest_p * math.log(rest_p / rest_q), 0.0)


@st.composite
def distributions(draw: st.DrawFn) -> Listed:
    tokens = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True))
    weights = draw(
        st.lists(st.floats(0.01, 1.0), min_size=len(tokens), max_size=len(tokens)).map(
            lambda values: [value / (sum(values) * 1.1) for value in values]
        )
    )
    pairs = [
        (token, float(np.float32(math.log(weight)))) for token, weight in zip(tokens, weights, strict=True)
    ]
    return sorted(pairs, key=lambda pair: -pair[1])


@given(distributions(), distributions())
def test_equals_the_formula_written_out(one: Listed, other: Listed) -> None:
    expected = 0.5 * (one_way(one, other) + one_way(other, one))
    (found,) = symmetric_kld(*arrays(one), *arrays(other))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(distributions(), distributions())
def test_is_symmetric_and_zero_for_equal_lists(one: Listed, other: Listed) -> None:
    there = symmetric_kld(*arrays(one), *arrays(other))
    back = symmetric_kld(*arrays(other), *arrays(one))
    assert there == back
    assert there >= 0
    assert symmetric_kld(*arrays(one), *arrays(one)) == 0
    wider = tuple(
        np.pad(part, ((0, 0), (0, 3)), constant_values=fill)
        for part, fill in zip(arrays(one), (NO_TOKEN, np.nan), strict=True)
    )
    assert symmetric_kld(*arrays(one), *wider) == 0  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    one = [(1, math.log(0.5)), (2, math.log(0.25))]
    other = [(1, math.log(0.25)), (2, math.log(0.5))]
    # Both ways: 0.5 ln 2 + 0.25 ln 0.5 = 0.25 ln 2; the rest is 0.25 in both.
    assert symmetric_kld(*arrays(one), *arrays(other))[0] == pytest.approx(0.25 * math.log(2), rel=1e-6)
    missing = [(1, math.log(0.5)), (3, math.log(0.25))]
    # Token 2 gets the bound 0.25, which is what it has: nothing differs but what the bound hides.
    assert symmetric_kld(*arrays(one), *arrays(missing))[0] == pytest.approx(0.0, abs=1e-7)


def test_a_small_difference_is_not_rounded_away() -> None:
    one = [(1, -0.5), (2, -1.5)]
    nudged = [(1, float(np.nextafter(np.float32(-0.5), np.float32(0)))), (2, -1.5)]
    assert symmetric_kld(*arrays(one), *arrays(nudged))[0] > 0


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_values_that_are_not_finite_give_nan_and_never_zero(value: float) -> None:
    good, bad = [(1, -0.5), (2, -1.5)], [(1, -0.5), (2, value)]
    assert np.isnan(symmetric_kld(*arrays(good), *arrays(bad)))
    assert np.isnan(symmetric_kld(*arrays(bad), *arrays(bad)))
    assert list(finite(*arrays(good, bad))) == [True, False]


def test_nothing_listed_gives_nan() -> None:
    empty = np.full((1, 2), NO_TOKEN, dtype=np.int32), np.full((1, 2), np.nan, dtype=np.float32)
    assert np.isnan(symmetric_kld(*empty, *arrays([(1, -0.5), (2, -1.5)])))
    none = np.zeros((1, 0), dtype=np.int32), np.zeros((1, 0), dtype=np.float32)
    assert np.isnan(symmetric_kld(*none, *none)).all()
    assert not lists_any(none[0]).any()
    assert not lists_any(empty[0]).any()
    assert lists_any(arrays([(1, -0.5)])[0]).all()


def test_chosen_rows_are_compared() -> None:
    ids, logprobs = arrays([(1, -0.5)], [(1, -1.0)], [(1, -2.0)])
    rows = np.array([0, 1]), np.array([2, 1])
    apart = symmetric_kld(ids, logprobs, ids, logprobs, rows=rows)
    assert apart[0] > 0
    assert apart[1] == 0
