"""The formulas against values worked out by hand (those of docs/definitions.md) and against their properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from bepa_torchrl import functional as F


def successes(k: int, n: int = 8) -> torch.Tensor:
    return torch.tensor([1.0] * k + [0.0] * (n - k), dtype=torch.float64)


@pytest.mark.parametrize(
    ("k", "std", "succ", "fail"),
    [
        (1, "population", 2.645751, -0.377964),  # sqrt(7/1), -sqrt(1/7)
        (1, "bessel", 2.474874, -0.353553),
        (1, "none", 0.875, -0.125),
        (2, "population", 1.732051, -0.577350),
        (2, "bessel", 1.620185, -0.540062),
        (2, "none", 0.75, -0.25),
        (4, "population", 1.0, -1.0),
        (4, "bessel", 0.935414, -0.935414),
        (4, "none", 0.5, -0.5),
        (7, "population", 0.377964, -2.645751),
        (7, "bessel", 0.353553, -2.474874),
        (7, "none", 0.125, -0.875),
    ],
)
def test_golden_advantages(k, std, succ, fail):
    advantage = F.group_advantage(successes(k), std=std, eps=0.0)
    assert advantage[0].item() == pytest.approx(succ, abs=5e-7)
    assert advantage[-1].item() == pytest.approx(fail, abs=5e-7)


def test_advantage_with_the_default_eps():
    advantage = F.group_advantage(successes(1).float())
    assert advantage.dtype == torch.float32
    assert advantage[0].item() == pytest.approx(2.645743, abs=5e-7)
    assert advantage[1].item() == pytest.approx(-0.377963, abs=5e-7)


@pytest.mark.parametrize("std", F.STD_RULES)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1])  # the mean of equal 0.1s is not 0.1 in floating point
@pytest.mark.parametrize("n", [1, 3, 8])
def test_equal_returns_give_exact_zeros(std, value, n):
    assert F.group_advantage(torch.full((n,), value), std=std).tolist() == [0.0] * n


@examples(60)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=12), st.sampled_from(F.STD_RULES))
def test_advantages_sum_to_zero(returns, std):
    advantage = F.group_advantage(torch.tensor(returns), std=std)
    assert torch.isfinite(advantage).all()
    assert advantage.sum().item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("k", "leave_one_out", "maxrl"),
    [
        (1, (1, -1 / 7), (7, -1)),
        (2, (6 / 7, -2 / 7), (3, -1)),
        (4, (4 / 7, -4 / 7), (1, -1)),
        (7, (1 / 7, -1), (1 / 7, -1)),
    ],
)
def test_golden_advantages_of_rloo_and_maxrl(k, leave_one_out, maxrl):
    """N = 8: R - (k - R) / 7, and (R - k/8) / (k/8)."""
    for function, (succ, fail) in ((F.leave_one_out_advantage, leave_one_out), (F.maxrl_advantage, maxrl)):
        advantage = function(successes(k).float())
        assert advantage.tolist() == pytest.approx([succ] * k + [fail] * (8 - k), rel=1e-6)
        assert advantage.dtype == torch.float32


def test_rloo_and_maxrl_of_partial_returns():
    """RLOO: 0.5 - 0.75 / 2, 0.75 - 0.5 / 2, 0 - 1.25 / 2. MaxRL: the mean is 5/12, so 6/5 - 1, 9/5 - 1, -1."""
    returns = torch.tensor([0.5, 0.75, 0.0])
    assert F.leave_one_out_advantage(returns).tolist() == pytest.approx([0.125, 0.5, -0.625])
    assert F.maxrl_advantage(returns).tolist() == pytest.approx([0.2, 0.8, -1.0])


@pytest.mark.parametrize("function", [F.leave_one_out_advantage, F.maxrl_advantage])
def test_rloo_and_maxrl_without_a_difference_are_zero_and_bad_returns_are_refused(function):
    for returns in ([0.0], [1.0], [0.0] * 4, [0.1] * 3):
        assert function(torch.tensor(returns)).tolist() == [0.0] * len(returns)
    assert function(torch.tensor([True, False])).dtype == torch.float32
    with pytest.raises(ValueError, match="non-empty"):
        function(torch.zeros(0))
    with pytest.raises(ValueError, match="finite"):
        function(torch.tensor([0.0, float("inf")]))


def test_maxrl_refuses_negative_returns():
    with pytest.raises(ValueError, match=">= 0"):
        F.maxrl_advantage(torch.tensor([1.0, -1.0]))


def test_integer_and_boolean_returns():
    want = F.group_advantage(torch.tensor([1.0, 0.0]))
    assert torch.equal(F.group_advantage(torch.tensor([1, 0])), want)
    assert torch.equal(F.group_advantage(torch.tensor([True, False])), want)


@pytest.mark.parametrize(
    ("returns", "options", "message"),
    [
        (torch.zeros(2, 2), {}, "shape"),
        (torch.zeros(0), {}, "non-empty"),
        (torch.tensor([0.0, float("nan")]), {}, "finite"),
        (torch.zeros(2), {"std": "sample"}, "population"),
        (torch.zeros(2), {"eps": -1.0}, "eps"),
        (torch.zeros(2), {"eps": float("nan")}, "eps must be a finite number >= 0; got nan"),
    ],
)
def test_group_advantage_refuses(returns, options, message):
    with pytest.raises(ValueError, match=message):
        F.group_advantage(returns, **options)


# The toy: group 1 has episodes of 2 and 6 tokens, group 2 of 10 and 10, A = (+1, -1) in each, ratio 1.
TOY = [(0, 0, 2, 1.0), (0, 1, 6, -1.0), (1, 0, 10, 1.0), (1, 1, 10, -1.0)]  # group, slot, tokens, advantage


@pytest.mark.parametrize(
    ("aggregation", "max_length", "loss"),
    [
        ("group", None, 0.25),  # ((6 - 2)/8 + 0/20) / 2
        ("token", None, 4 / 28),
        ("sequence", None, 0.0),  # each episode weighs the same
        ("sum_norm", 10, 4 / (2 * 2 * 10)),
    ],
)
def test_golden_aggregation(aggregation, max_length, loss):
    group, slot, length, advantage = (torch.tensor(x) for x in zip(*TOY, strict=True))
    z = F.row_denominators(length, group, slot, aggregation=aggregation, max_length=max_length)
    assert (-advantage * length / z).sum().item() == pytest.approx(loss, abs=1e-7)


def test_an_episode_of_several_rows_is_one_sequence():
    """Group 5: episode 0 has rows of 1 and 3 tokens, episode 2 one row of 4; group 9: one episode of 8."""
    length, group, slot = torch.tensor([1, 3, 4, 8]), torch.tensor([5, 5, 5, 9]), torch.tensor([0, 0, 2, 0])
    denominators = {a: F.row_denominators(length, group, slot, aggregation=a).tolist() for a in ("group", "sequence")}
    assert denominators == {"group": [16.0] * 4, "sequence": [4 * 2 * 2.0] * 3 + [8 * 1 * 2.0]}
    by_step = F.row_denominators(length, group, slot, unit="step")
    assert by_step.tolist() == [6.0, 6.0, 6.0, 2.0]  # steps of the group x 2 groups


def test_a_group_without_a_token_does_not_divide_by_zero():
    z = F.row_denominators(torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert z.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "mean"}, "group, token, sequence, sum_norm"),
        ({"unit": "word"}, "token, step"),
        ({"aggregation": "sum_norm"}, "requires max_length"),
        ({"max_length": 3}, "sum_norm"),
        ({"aggregation": "sum_norm", "max_length": 0}, "max_length: expected an integer >= 1, got 0"),
        ({"aggregation": "sum_norm", "max_length": 9.5}, "max_length: expected an integer >= 1, got 9.5"),
    ],
)
def test_row_denominators_refuses(options, message):
    one = torch.ones(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        F.row_denominators(one, one, one, **options)


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual", "loss"),
    [
        (-1.0, 5.0, None, 5.0),  # min(-5, -1.3) = -5
        (-1.0, 5.0, 3.0, 3.0),
        (-1.0, 2.0, 3.0, 2.0),  # the bound is not reached
        (1.0, 5.0, None, -1.3),
        (1.0, 5.0, 3.0, -1.3),  # positive advantages are not affected
        (1.0, 0.5, None, -0.5),
        (-1.0, 0.5, None, 0.8),  # min(-0.5, -0.8) = -0.8
        (2.0, 1.0, None, -2.0),
        (0.0, 5.0, 3.0, 0.0),
    ],
)
def test_golden_clip(advantage, ratio, dual, loss):
    got = F.clipped_surrogate(torch.tensor(ratio).log(), torch.tensor(advantage), dual_clip=dual)
    assert got.item() == pytest.approx(loss, rel=1e-6)


def test_the_clip_stops_the_gradient_on_one_side_only():
    log_ratio = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)  # r = 1.65, 1.65, 0.61, 0.61
    F.clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0])).sum().backward()
    up, down = math.exp(0.5), math.exp(-0.5)
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, up, -down, 0.0]))


def test_clip_binds_where_the_gradient_is_stopped_and_counts_no_padding():
    """r = e^9 in the padding; 1, 1.35 (above 1.3) with A > 0, 0.74 (below 0.8) with A < 0 and, not binding, A > 0."""
    log_ratio = torch.tensor([[9.0, 0.0, 0.3], [9.0, 9.0, -0.3], [9.0, 9.0, -0.3]])
    advantage = torch.tensor([[1.0], [-1.0], [1.0]])
    mask = torch.tensor([[False, True, True], [False, False, True], [False, False, True]])
    binds = F.clip_binds(log_ratio, advantage)
    assert (binds & mask).tolist() == [[False, False, True], [False, False, True], [False] * 3]
    assert F.clip_fraction(binds, mask).item() == pytest.approx(2 / 4)
    assert F.clip_fraction(binds, torch.zeros_like(mask)).item() == 0.0
    assert not F.clip_binds(torch.tensor([9.0, -9.0]), torch.zeros(2)).any()


@pytest.mark.parametrize(
    ("p", "f", "df"),
    [
        (0.001, 0.009901, 0.009803),
        (0.01, 0.090909, 0.082645),
        (0.1, 0.5, 0.25),
        (0.5, 0.833333, 0.138889),
        (1.0, 0.909091, 0.082645),
    ],
)
def test_golden_shaping(p, f, df):
    log_prob = torch.tensor(p, dtype=torch.float64).log().requires_grad_()
    shaped = F.luffy_shaping(log_prob.exp())
    (gradient,) = torch.autograd.grad(shaped, log_prob)
    assert shaped.item() == pytest.approx(f, abs=5e-7)
    assert gradient.item() == pytest.approx(df, abs=5e-7)
    assert F.shaped_surrogate(log_prob, torch.tensor(2.0)).item() == pytest.approx(-2 * f, abs=2e-6)


def test_bad_settings_of_the_surrogates():
    for bound in (1.0, float("nan")):
        with pytest.raises(ValueError, match="dual_clip"):
            F.clipped_surrogate(torch.zeros(1), torch.zeros(1), dual_clip=bound)
    for gamma in (0.0, float("nan")):
        with pytest.raises(ValueError, match="gamma"):
            F.luffy_shaping(torch.ones(1), gamma=gamma)


def test_log_ratio_lets_nothing_through_the_mask():
    log_prob = torch.tensor([[float("nan"), -1.0]], requires_grad=True)
    out = F.log_ratio(log_prob, torch.tensor([[float("nan"), -3.0]]), torch.tensor([[False, True]]))
    out.sum().backward()
    assert out.tolist() == [[0.0, 2.0]]
    assert log_prob.grad.tolist() == [[0.0, 1.0]]


def test_per_step_sums_tokens():
    total, some = F.per_step(
        torch.tensor([[7.0, -1.0, -2.0], [7.0, 7.0, 7.0]]), torch.tensor([[0, 1, 1], [0, 0, 0]]) > 0
    )
    assert total.tolist() == [[-3.0], [0.0]]
    assert some.tolist() == [[True], [False]]


def test_response_mean_at_each_token():
    log_ratio = torch.tensor([[9.0, -1.0, 4.0], [9.0, 9.0, 9.0]], requires_grad=True)
    mean = F.response_mean(log_ratio, torch.tensor([[0, 1, 1], [0, 0, 0]]) > 0)
    assert mean.tolist() == [[0.0, 1.5, 1.5], [0.0, 0.0, 0.0]]
    (gradient,) = torch.autograd.grad(mean[0, 1], log_ratio)
    assert gradient.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]


def test_jensen_shannon_numbers():
    half, one, other = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert F.jensen_shannon(half, one).item() == pytest.approx(0.215762, abs=5e-7)
    assert F.jensen_shannon(half, half).item() == 0.0
    assert F.jensen_shannon(one, other).item() == pytest.approx(math.log(2))
    assert F.jensen_shannon(torch.tensor([3, 3]), torch.tensor([8, 0])).item() == pytest.approx(0.215762, abs=5e-7)
    for bad in (torch.tensor([-1.0, 2.0]), torch.zeros(2), torch.tensor([1.0])):
        with pytest.raises(ValueError, match="histogram"):
            F.jensen_shannon(half, bad)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8))
def test_jensen_shannon_is_symmetric_and_bounded(counts):
    p, q = (torch.tensor(x) for x in zip(*counts, strict=True))
    if p.sum() == 0 or q.sum() == 0:
        return
    js = F.jensen_shannon(p, q).item()
    assert 0 <= js <= math.log(2) + 1e-12
    assert js == pytest.approx(F.jensen_shannon(q, p).item(), abs=1e-12)


def test_histogram_and_tail():
    probabilities = torch.tensor([0.0001, 0.01, 0.03, 0.25, 0.5, 1.0], dtype=torch.float64)
    histogram = F.probability_histogram(probabilities.log())
    assert histogram.shape == (50,)
    share = {i: round(x * 6) for i, x in enumerate(histogram.tolist()) if x}
    assert share == {0: 2, 1: 1, 12: 1, 25: 1, 49: 1}
    assert histogram.sum().item() == pytest.approx(1.0)
    assert F.tail_mass(probabilities.log()).item() == pytest.approx(0.5)
    assert F.probability_histogram(torch.tensor([0.0]), bins=1).tolist() == [1.0]
    for bad in (torch.zeros(0), torch.tensor([0.5]), torch.tensor([float("nan")])):
        with pytest.raises(ValueError, match="log-probabilit"):
            F.tail_mass(bad)


def test_statistics_by_hand():
    values, mask = torch.tensor([[9.0, 1.0], [2.0, 3.0]]), torch.tensor([[False, True], [True, True]])
    assert F.masked_mean(values, mask).item() == 2.0
    assert F.masked_max(values, mask).item() == 3.0
    nothing = torch.zeros_like(mask)
    assert F.masked_mean(values, nothing).isnan()
    assert F.masked_max(values, nothing).isnan()
    assert F.effective_sample_size(values, nothing).isnan()
    ratio = torch.tensor([[1.0, 3.0]]).log()  # (1 + 3)^2 / (2 (1 + 9)) = 0.8
    both = torch.tensor([[True, True]])
    assert F.effective_sample_size(ratio, both).item() == pytest.approx(0.8)
    assert F.approximate_kl(ratio, both).item() == pytest.approx((2 - math.log(3)) / 2)


def test_the_sample_size_has_the_clamped_ratios_of_the_other_statistics():
    """e^25 and e^21 count as e^20 each, alone or together."""
    log_ratio = torch.tensor([25.0, 21.0], dtype=torch.float64)
    assert F.effective_sample_size(log_ratio, torch.tensor([True, True])).item() == pytest.approx(1.0)


def test_entropy_of_uniform_and_certain():
    assert F.token_entropy(torch.zeros(2, 8)).tolist() == pytest.approx([math.log(8)] * 2)
    assert F.token_entropy(torch.tensor([0.0, -math.inf, -math.inf])).item() == 0.0
    # p = (3/4, 1/4, 0): dH/dlogit = -p (log p + H), and 0 for the token that cannot be
    logits = torch.tensor([math.log(3.0), 0.0, -math.inf], requires_grad=True)
    entropy = F.token_entropy(logits)
    entropy.backward()
    expected = [-0.75 * (math.log(0.75) + entropy.item()), -0.25 * (math.log(0.25) + entropy.item()), 0.0]
    assert logits.grad.tolist() == pytest.approx(expected)


def test_cross_entropy_of_nothing_is_zero_with_zero_gradient():
    log_prob = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    assert F.cross_entropy(log_prob, torch.tensor([[True, True]])).item() == 2.0
    nothing = F.cross_entropy(log_prob, torch.zeros(1, 2, dtype=torch.bool))
    nothing.backward()
    assert nothing.item() == 0.0
    assert log_prob.grad.tolist() == [[0.0, 0.0]]
