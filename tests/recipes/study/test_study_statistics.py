"""Intervals: means by hand, pairing, a difference that all seeds share is found and one within the noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.study.estimates import gain_text, interval_text, rate_text
from recipes.study.statistics import T_QUANTILES, Estimate, bootstrap, difference, estimate, t_interval


def test_the_mean_is_over_seeds_and_tasks_and_equal_rates_have_no_width() -> None:
    found = estimate(np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert found.mean == pytest.approx(0.5)
    same = estimate(np.full((3, 4), 0.3))
    assert (same.mean, same.low, same.high) == pytest.approx((0.3, 0.3, 0.3))


def test_two_seeds_of_one_task_give_the_extremes() -> None:
    """Resampled means of (0, 1) are 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4: the 2.5 % quantiles are 0 and 1."""
    found = bootstrap(np.array([[0.0], [1.0]]))
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)


def test_students_interval_is_over_the_seeds_means() -> None:
    """Means 0.2, 0.4, 0.6: their deviation is 0.2, so that the half width is 4.303 * 0.2 / √3."""
    rates = np.array([[0.1, 0.3], [0.4, 0.4], [0.5, 0.7]])
    found = t_interval(rates)
    assert (found.mean, found.high - 0.4) == pytest.approx((0.4, 4.303 * 0.2 / np.sqrt(3)))
    alone = estimate(rates.mean(axis=1, keepdims=True))  # as for tasks that differ by seed
    assert (alone.low, alone.high) == pytest.approx((found.low, found.high))
    many = t_interval(np.tile([[0.0], [1.0]], (20, 1)))  # 39 degrees of freedom, more than are tabulated
    assert many.high - many.mean == pytest.approx(T_QUANTILES[-1] * np.sqrt(0.25 * 40 / 39) / np.sqrt(40))


def test_an_estimate_holds_both_intervals() -> None:
    """Seeds that differ widen it beyond the bootstrap; tasks that differ, beyond Student's."""
    seeds = np.array([[0.0] * 50, [0.3] * 50, [0.6] * 50])
    tasks = np.tile(np.repeat([0.0, 1.0], 10), (3, 1))
    for rates, wider in ((seeds, t_interval(seeds)), (tasks, bootstrap(tasks))):
        found = estimate(rates)
        assert (found.low, found.high) == pytest.approx((wider.low, wider.high))


def test_texts_have_intervals_from_three_seeds_on() -> None:
    one, other = np.array([[0.5, 1.0], [0.25, 0.25]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    assert rate_text(one) == "75.0 / 25.0"
    assert gain_text((one, other)) == "+25.0 / -25.0"
    assert rate_text(np.array([[0.8], [0.9], [1.0]])) == "90.0 (65 to 100)"  # 90 ± 24.8, a rate ends at 100
    assert gain_text((np.ones((3, 2)), np.zeros((3, 2)))) == "100.0 (100 to 100)*"
    assert (rate_text(None), gain_text(None), interval_text(None)) == ("–", "–", "–")


def test_a_bound_near_zero_keeps_its_sign() -> None:
    assert interval_text(Estimate(0.05, -0.003, 0.1)) == "5.0 (-0.3 to 10)"
    assert interval_text(Estimate(0.05, 0.003, 0.1)) == "5.0 (0.3 to 10)"


def test_width_is_that_of_theory_over_tasks() -> None:
    """Seeds that agree: the variance is that of the mean of 400 tasks, half of them 0 and half 1."""
    rates = np.tile(np.repeat([0.0, 1.0], 200), (3, 1))
    found = estimate(rates)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.1)


def test_pairing_removes_the_tasks_difficulty() -> None:
    generator = np.random.default_rng(0)
    base = generator.uniform(size=(1, 50)).repeat(5, axis=0)
    better = np.clip(base + 0.1 + generator.normal(0, 0.02, base.shape), 0, 2)
    paired = difference(better, base)
    assert paired.sign == 1
    assert paired.mean == pytest.approx(0.1, abs=0.01)
    assert paired.high - paired.low < 0.03 < estimate(base).high - estimate(base).low
    assert difference(base, better).sign == -1


def test_noise_alone_has_no_sign() -> None:
    generator = np.random.default_rng(1)
    one, other = (generator.binomial(8, 0.5, (5, 60)) / 8 for _ in range(2))
    assert difference(one, other).sign == 0


@pytest.mark.parametrize("shape", [(1, 5), (3, 0), (5,)])
def test_too_few_seeds_or_tasks_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 2 seeds"):
        estimate(np.zeros(shape))


def test_a_missing_rate_and_unpaired_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        estimate(np.array([[0.0, np.nan], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="one shape"):
        difference(np.zeros((2, 3)), np.zeros((2, 4)))
