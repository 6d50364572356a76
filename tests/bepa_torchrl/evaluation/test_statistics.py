"""Intervals: means by hand, pairing, a difference that all seeds share is found and one within the noise is not."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from bepa_torchrl.evaluation.statistics import (
    FEWEST_PAIRS,
    Estimate,
    all_pass_at_k,
    bootstrap,
    difference,
    efficiency_quality_area,
    estimate,
    mcnemar,
    paired_difference,
    pass_at_k,
    smallest_difference,
    success_interval,
    t_interval,
    wilson,
)
from recipes.study.estimates import gain_text, interval_text, rate_text


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
    """Means 0.2, 0.4, 0.6: their deviation is 0.2, so that the half width is 4.302653 * 0.2 / √3."""
    rates = np.array([[0.1, 0.3], [0.4, 0.4], [0.5, 0.7]])
    found = t_interval(rates)
    assert (found.mean, found.high - 0.4) == pytest.approx((0.4, 4.302653 * 0.2 / np.sqrt(3)))
    alone = estimate(rates.mean(axis=1, keepdims=True))  # as for tasks that differ by seed
    assert (alone.low, alone.high) == pytest.approx((found.low, found.high))
    many = t_interval(np.tile([[0.0], [1.0]], (20, 1)))  # 39 degrees of freedom
    assert many.high - many.mean == pytest.approx(2.022691 * np.sqrt(0.25 * 40 / 39) / np.sqrt(40))


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
    assert (rate_text(np.zeros((5, 1))), rate_text(np.ones((3, 4)))) == ("0.0", "100.0")  # not 0 to 0
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
    for function in (estimate, t_interval):
        with pytest.raises(ValueError, match="at least 2 seeds"):
            function(np.zeros(shape))


def test_a_missing_rate_and_unpaired_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        estimate(np.array([[0.0, np.nan], [0.0, 0.0]]))
    for function in (bootstrap, t_interval):
        with pytest.raises(ValueError, match="NaN or infinite"):
            function(np.array([[0.0, np.inf], [0.0, 0.0]]))
    for score in (float("nan"), -0.1, 2.0):
        with pytest.raises(ValueError, match=f"a score is in .0, 1., got {score}"):
            success_interval([[0.0, score], [1.0]])
    with pytest.raises(ValueError, match="one shape"):
        difference(np.zeros((2, 3)), np.zeros((2, 4)))


def test_wilsons_interval_is_that_of_the_formula() -> None:
    """7 of 10: centre (p + z²/2n) / (1 + z²/n), half width z √(p(1-p)/n + z²/4n²) / (1 + z²/n), with z = 1.959964."""
    z, p, n = 1.959964, 0.7, 10
    centre, half = (p + z**2 / (2 * n)), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    found = wilson(7, 10)
    expected = (0.7, (centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n))
    assert (found.mean, found.low, found.high) == pytest.approx(expected, abs=1e-6)


def test_one_pass_has_wilsons_interval() -> None:
    assert success_interval([[1.0]] * 7 + [[0.0]] * 3) == wilson(7, 10)
    assert success_interval([[1.0, 1.0]] * 5) == wilson(5, 5)  # nothing tells how alike a task's episodes are
    assert success_interval([[0.0, 0.0]] * 5 + [[0.0]]) == wilson(0, 6)
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson(3, 2)


def test_several_passes_are_worth_as_many_episodes_as_their_tasks_differ() -> None:
    """p (1 - p) n / v: tasks that always or never succeed are worth n, tasks that do not differ all their episodes.

    Of 100 tasks with the rate 1/2, two episodes give the means 0, 1/2, 1 of 25, 50, 25 tasks: v = 1/8, which are
    1/4 x 100 / (1/8) = 200 episodes. The means 1, 1/2, 0 of three tasks: v = 1/6, 1/4 x 3 x 6 = 4.5 of 6 episodes.
    """
    assert success_interval([[1.0] * 3] * 7 + [[0.0] * 3] * 3) == wilson(7, 10)
    same = success_interval([[1.0, 0.0]] * 50 + [[1.0, 1.0]] * 25 + [[0.0, 0.0]] * 25)
    assert same == wilson(100, 200)
    assert success_interval([[1.0, 0.0]]) == wilson(1, 2)
    found, square = success_interval([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]), 1.959964**2
    half = np.sqrt(square * (0.25 / 4.5 + square / (4 * 4.5**2))) / (1 + square / 4.5)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)


def test_an_interval_of_several_passes_holds_the_rate_as_often_as_it_says() -> None:
    """40 tasks with the rate 1/2, 3 episodes of each; drawing episodes of drawn tasks, it held the rate in 99 %."""
    generator = np.random.default_rng(0)
    held = []
    for _ in range(400):
        found = success_interval([[1.0] * wins + [0.0] * (3 - wins) for wins in generator.binomial(3, 0.5, 40)])
        held.append(found.low <= 0.5 <= found.high)
    assert 0.92 <= np.mean(held) <= 0.98


def test_tasks_weigh_alike_however_many_episodes_they_have() -> None:
    assert success_interval([[1.0], [0.0, 0.0, 0.0]]).mean == 0.5
    with pytest.raises(ValueError, match="an episode of each"):
        success_interval([[1.0], []])


def test_pass_at_k_by_hand() -> None:
    """2 of 4 episodes succeed: of 6 pairs, 1 has no success and 1 has two."""
    assert pass_at_k(2, 4, 2) == pytest.approx(5 / 6)
    assert all_pass_at_k(2, 4, 2) == pytest.approx(1 / 6)
    assert pass_at_k(2, 4, 1) == all_pass_at_k(2, 4, 1) == 0.5
    with pytest.raises(ValueError, match="pass@3 requires at least 3 episodes"):
        pass_at_k(1, 2, 3)
    for function in (pass_at_k, all_pass_at_k):
        with pytest.raises(ValueError, match="k >= 1, got 0"):
            function(1, 2, 0)
        for successes in (-1, 3):
            with pytest.raises(ValueError, match=f"0 to 2 successes of 2 episodes, got {successes}"):
                function(successes, 2, 1)


def test_mcnemar_counts_the_pairs_that_differ() -> None:
    """5 pairs, all for one side: p = 2 (1/2)^5."""
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert (mcnemar(3, 3), mcnemar(0, 0)) == (pytest.approx(1.0), 1.0)


def test_a_paired_difference_uses_the_same_tasks_on_both_sides() -> None:
    first, second = [[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]
    half = paired_difference([*first, [0.0, 0.0]], [*second, [1.0, 1.0]])  # a task gained of three
    assert (half.mean, half.low, half.high) == (pytest.approx(1 / 3), 0.0, 1.0)  # unpaired, it would be from -2/3
    same = paired_difference(first, second)
    assert (same.mean, -same.low) == (0.0, same.high)


def test_a_paired_difference_draws_tasks_and_keeps_their_episodes() -> None:
    """Two tasks differ by 0 and 1/2: 0, 1/4, 1/2 with 1/4, 1/2, 1/4. Drawing the second's episodes too, it can be 1."""
    found = paired_difference([[0.0, 0.0]] * 2, [[0.0, 0.0], [1.0, 0.0]])
    assert (found.mean, found.low, found.high) == (0.25, 0.0, 0.5)
    alike = paired_difference([[0.0, 0.0]] * 3, [[1.0, 0.0]] * 3)  # twice Wilson's of 3/4 of 3, less 1
    square = 1.959964**2
    centre, half = 0.75 + square / 6, np.sqrt(square * (0.1875 / 3 + square / 36))
    bounds = [2 * (centre + sign * half) / (1 + square / 3) - 1 for sign in (-1, 1)]
    assert (alike.mean, alike.low, alike.high) == pytest.approx((0.5, *bounds), abs=1e-6)


def test_a_paired_difference_that_all_tasks_share_has_an_interval() -> None:
    """Tango's score interval, z² = 3.841459: ±z² / (20 + z²), and from (3 - z²) / (3 + z²) to 1."""
    square = 1.959964**2
    same = paired_difference([[1.0]] * 20, [[1.0]] * 20)
    assert (same.mean, same.low, same.high) == pytest.approx((0.0, -square / (20 + square), square / (20 + square)))
    gain = paired_difference([[0.0, 0.0]] * 3, [[1.0, 1.0]] * 3)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((1.0, (3 - square) / (3 + square), 1.0))
    loss = paired_difference([[1.0]] * 3, [[0.0]] * 3)
    assert (loss.mean, loss.low, loss.high) == pytest.approx((-1.0, -1.0, -gain.low))


def test_differences_that_are_alike_but_for_rounding_have_an_interval() -> None:
    """2/3 - 1/3 and 1 - 2/3 are 5e-17 apart: a bootstrap of the two would have that width, and exclude 0."""
    one, two, three = [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]
    found, exact = paired_difference([one, two], [two, three]), paired_difference([[0.0, 0.0, 0.0]] * 2, [one] * 2)
    assert (found.mean, found.low, found.high) == pytest.approx((exact.mean, exact.low, exact.high))
    assert (found.sign, found.high - found.low > 0.5) == (0, True)
    parts = paired_difference([[0.1, 0.2, 0.3], [0.0]], [[0.3, 0.2, 0.1], [0.0]])  # sums of other last digits
    assert (-parts.low, parts.high) == pytest.approx((wilson(0, 2).high,) * 2)
    assert smallest_difference([one, two] * 3, [two, three] * 3) is None


def test_the_smallest_difference_by_hand() -> None:
    """Of 40 tasks 10 are gained and 10 lost: deviation √(20/39), so (1.95996 + 0.84162) √(20/39) / √40."""
    first, second = [[0.0]] * 30 + [[1.0]] * 10, [[1.0]] * 10 + [[0.0]] * 30
    assert smallest_difference(first, second) == pytest.approx((1.959964 + 0.841621) * np.sqrt(1 / 78), rel=1e-5)


@pytest.mark.parametrize("gained", [0, 1, 20])
def test_the_smallest_difference_is_one_that_the_mcnemar_test_finds(gained: int) -> None:
    """6 of n tasks must be gained; with a share of 0.36646 at least 6 of 20 are with a probability of 0.8."""
    assert mcnemar(0, FEWEST_PAIRS - 1) > 0.05 >= mcnemar(0, FEWEST_PAIRS)
    found = smallest_difference([[0.0]] * 20, [[1.0]] * gained + [[0.0]] * (20 - gained))
    assert found is not None
    missed = sum(comb(20, k) * found**k * (1 - found) ** (20 - k) for k in range(FEWEST_PAIRS))
    assert (found, missed) == (pytest.approx(0.36646, abs=1e-4), pytest.approx(0.2))


def test_the_smallest_difference_that_nobody_can_say() -> None:
    """Fewer than 6 tasks; several passes that differ in nothing; a deviation for which it would be above 1."""
    assert smallest_difference([[0.0], [1.0]], [[1.0], [0.0]]) is None
    assert smallest_difference([[0.0]] * 5, [[1.0]] * 5) is None
    assert smallest_difference([[0.0, 1.0]] * 20, [[0.0, 1.0]] * 20) is None
    low, high = [0.0, 0.0], [1.0, 1.0]
    assert smallest_difference([low, high] * 3, [high, low] * 3) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=50))
@examples(50)
def test_the_smallest_difference_is_possible(pairs: list[tuple[bool, bool]]) -> None:
    found = smallest_difference([[float(a)] for a, _ in pairs], [[float(b)] for _, b in pairs])
    assert found is None if len(pairs) < FEWEST_PAIRS else found is None or 0 < found <= 1


def test_the_efficiency_quality_area_by_hand() -> None:
    """Two tasks, 10 steps each at most: solved after 5 and after 15 of 20 steps, that is from u = 0.25 and u = 0.75.

    Of the points 0, 0.01, ..., 1 there are 25 before, 50 between (R = 1/2) and 26 after (R = 1). In the other order
    the first task is over at u = 0.5: 50 points at 0, 25 at 1/2, 26 at 1.
    """
    assert efficiency_quality_area([True, True], [5, 10], 10) == pytest.approx((25 + 26) / 101)
    assert efficiency_quality_area([True, True], [10, 5], 10) == pytest.approx((12.5 + 26) / 101)
    assert efficiency_quality_area([False, True], [5, 10], 10) == pytest.approx(13 / 101)
    assert efficiency_quality_area([True], [0], 10) == 1.0
    with pytest.raises(ValueError, match=r"0 to 10 steps of each task, .*, the largest 11"):
        efficiency_quality_area([True], [11], 10)
