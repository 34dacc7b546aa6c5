"""A thinned curve looks like the whole one, whatever the values are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.look.document import DOCUMENT, MAX_POINTS
from detslurm.look.thinning import curve, fewer, points_per_curve
from detslurm.store.series import Series
from detslurm.store.thinning import LEAST, fewer_means, means_of, thinned

VALUES = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


def _steps(count: int) -> Any:
    return np.arange(1, count + 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, max_size=300), st.integers(LEAST, 60), st.data())
def test_few_points_in_order(values: list[float], most: int, data: st.DataObject) -> None:
    """There are never more points than asked for, ascending, with both ends and the extremes."""
    numbers = np.array(values, dtype=float)
    gaps = data.draw(st.lists(st.integers(1, 10**6), min_size=len(values), max_size=len(values)))
    places = thinned(np.cumsum(np.array(gaps, dtype=np.int64)), numbers, most)
    assert len(places) <= most
    assert all(np.diff(places) > 0)
    if not values:
        return
    assert {places[0], places[-1]} == {0, len(values) - 1}
    kept = numbers[places]
    finite = numbers[np.isfinite(numbers)]
    if len(finite):
        shown = kept[np.isfinite(kept)]
        assert (shown.min(), shown.max()) == (finite.min(), finite.max())
    assert np.isnan(kept).any() == np.isnan(numbers).any()
    assert set(kept[np.isinf(kept)]) == set(numbers[np.isinf(numbers)])


def test_a_short_curve_stays_whole() -> None:
    """As many points as are allowed are not touched."""
    values = np.random.default_rng(1).normal(size=LEAST)
    assert list(thinned(_steps(LEAST), values, LEAST)) == list(range(LEAST))
    with pytest.raises(ValueError, match="can't be thinned to 3 points"):
        thinned(_steps(5), values[:5], 3)


def test_a_spike_stays() -> None:
    """One value of a million that is out of line is there afterwards, at its step."""
    values = np.zeros(1_000_000)
    values[123_456], values[777_777] = 9.0, -9.0
    places = thinned(_steps(len(values)), values, 1000)
    assert {123_456, 777_777} <= set(places)
    assert len(places) <= 1000


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=300), st.integers(1, 40), st.integers(1, 40))
def test_means_are_those_of_all_values(values: list[float], parts: int, fewer_parts: int) -> None:
    """Each of finite values alone, once or twice taken together: weighted they have one mean."""
    numbers = np.clip(np.array(values, dtype=float), -1e300, 1e300)
    numbers[np.isinf(values)] = math.inf
    steps = _steps(len(numbers)) ** 2
    once = means_of(steps, numbers, steps / 2.0, parts)
    finite = numbers[np.isfinite(numbers)] / 1e3
    for means, most in ((once, parts), (fewer_means(once, fewer_parts), fewer_parts)):
        assert len(means.steps) <= most
        assert all(np.diff(means.steps) > 0)
        assert means.counts.sum() == len(finite)
        total = (means.values / 1e3 * means.counts).sum()
        assert total == pytest.approx(finite.sum(), abs=1e-9 * np.abs(finite).sum() + 1e-300)
        assert means.times == pytest.approx(means.steps / 2)


def test_a_thinned_curve_has_the_means_of_its_parts() -> None:
    """Which its highest and lowest values have not: one spike in each part does little."""
    values = np.where(np.arange(100_000) % 100, 1.0, 101.0)
    whole = Series("training", "loss", _steps(100_000), values, np.arange(100_000.0), 100_000)
    for series in (fewer(whole, 100), fewer(fewer(whole, 1000), 100)):
        made = curve(series)
        assert made.means is not None and len(made.means.values) == 49
        assert all(1.9 < float(value) < 2.1 for value in made.means.values if value is not None)
        assert (made.smallest, made.largest) == (1.0, 101.0)
        assert made.means.times[0] == pytest.approx(made.means.steps[0] - 1, abs=1)
    assert curve(whole._replace(steps=_steps(3), values=values[:3])).means is None


def test_a_gap_stays_empty() -> None:
    """Where nothing was reported there is no point, and points next to it stand near it."""
    steps = np.concatenate([np.arange(1000), np.arange(9000, 10_000)])
    values = np.sin(steps / 100)
    kept = steps[thinned(steps, values, 100)]
    assert not [step for step in kept if 1000 <= step < 9000]
    assert kept[kept < 1000].max() > 700
    assert kept[kept >= 9000].min() < 9300


def test_steps_beyond_the_exact_floats() -> None:
    """Whoever counts bytes as steps gets a curve all the same."""
    steps = np.arange(2**62, 2**62 + 500)
    places = thinned(steps, np.arange(500.0), 20)
    assert len(places) <= 20
    assert {0, 499} <= set(places)


def test_many_nans_leave_room_for_numbers() -> None:
    """A curve that is NaN at every second step shows its numbers all the same."""
    values = np.where(np.arange(10_000) % 2, np.nan, np.arange(10_000.0))
    kept = values[thinned(_steps(10_000), values, 100)]
    assert np.isnan(kept).any()
    assert np.isfinite(kept).sum() > 40


def test_a_curve_for_json() -> None:
    """NaN is None, infinities are words, times that are unknown are left out."""
    values = np.array([0.123456789, np.nan, np.inf, -np.inf])
    series = Series("training", "loss", _steps(4), values, np.full(4, np.nan), 4)
    made = curve(series)
    assert made.values == [0.123457, None, "inf", "-inf"]
    assert (made.steps, made.times, made.count) == ([1, 2, 3, 4], [], 4)
    timed = series._replace(times=np.array([1.26, np.nan, 3.0, 4.0]))
    assert curve(timed).times == [1.3, None, 3.0, 4.0]
    assert fewer(series, 20) is series


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        ([], MAX_POINTS),
        ([5_000_000], MAX_POINTS),
        ([10**6] * 90, 1000),
        ([10**6] * 400, 240),
        ([10] * 1000 + [10**6] * 200, 430),  # the short ones leave their part
        ([10**6] * 100_000, LEAST),
    ],
)
def test_the_more_curves_the_fewer_points(counts: list[int], most: int) -> None:
    """All curves together have the points of the budget, shared evenly."""
    assert points_per_curve(counts) == most
    if most > LEAST:
        assert sum(min(count, most) for count in counts) <= DOCUMENT.points


def test_long_documents_have_fewer_points() -> None:
    """What everything else takes is not there for curves."""
    most = points_per_curve([10**6] * 1000, length=3_250_000)
    assert most == 33
    assert points_per_curve([10**6] * 1000, length=6_000_000) == LEAST
