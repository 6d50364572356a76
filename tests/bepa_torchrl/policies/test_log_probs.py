"""Chunked log-probs against full logits: values, entropies, gradients."""

import math

import pytest
import torch

from bepa_torchrl.policies.transformers.chunked_log_probs import chunk_size, chunked_log_probs


def test_worked_out_by_hand():
    # logits (0, ln 3): probabilities 1/4 and 3/4; entropy = ln 4 - 3/4 ln 3
    hidden = torch.tensor([[1.0], [1.0]])
    weight = torch.tensor([[0.0], [math.log(3.0)]])
    log_probs, entropy = chunked_log_probs(hidden, weight, torch.tensor([0, 1]))
    assert log_probs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)], abs=1e-6)
    assert entropy.tolist() == pytest.approx([math.log(4) - 0.75 * math.log(3)] * 2, abs=1e-6)


def test_temperature_two_by_hand():
    # logits (0, 2 ln 3) / 2 = (0, ln 3): again 1/4 and 3/4; d log p(0) / d weight = ((1, 0) - (1/4, 3/4)) / 2
    hidden = torch.tensor([[1.0]])
    weight = torch.tensor([[0.0], [2 * math.log(3.0)]], requires_grad=True)
    log_probs, entropy = chunked_log_probs(hidden, weight, torch.tensor([0]), temperature=2.0)
    assert log_probs.item() == pytest.approx(math.log(0.25), abs=1e-6)
    assert entropy.item() == pytest.approx(math.log(4) - 0.75 * math.log(3), abs=1e-6)
    (gradient,) = torch.autograd.grad(log_probs.sum(), weight)
    assert gradient.flatten().tolist() == pytest.approx([0.375, -0.375], abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100, None])
def test_values_and_gradients_equal_full_logits(chunk):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 8, generator=generator, requires_grad=True)
    weight = torch.randn(37, 8, generator=generator, requires_grad=True)
    tokens = torch.randint(0, 37, (11,), generator=generator)
    upstream = torch.randn(11, generator=generator)
    of_entropy = torch.randn(11, generator=generator)

    log_probs, entropy = chunked_log_probs(hidden, weight, tokens, chunk=chunk)
    gradients = torch.autograd.grad((log_probs * upstream).sum(), (hidden, weight), retain_graph=True)
    both = torch.autograd.grad((log_probs * upstream + entropy * of_entropy).sum(), (hidden, weight), retain_graph=True)
    alone = torch.autograd.grad((entropy * of_entropy).sum(), (hidden, weight))

    full = (hidden @ weight.T).log_softmax(-1)
    expected = full.gather(-1, tokens[:, None]).squeeze(-1)
    expected_entropy = -(full.exp() * full).sum(-1)
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    for found, wanted in (
        (gradients, expected * upstream),
        (both, expected * upstream + expected_entropy * of_entropy),
        (alone, expected_entropy * of_entropy),
    ):
        expected_gradients = torch.autograd.grad(wanted.sum(), (hidden, weight), retain_graph=True)
        for got, want in zip(found, expected_gradients, strict=True):
            torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)


def test_the_gradient_of_the_entropy_by_hand():
    # p = (1/4, 3/4) at temperature 2: dH/dlogit_0 = -1/4 (ln 1/4 + H) / 2 with H = ln 4 - 3/4 ln 3, so 3/32 ln 3
    weight = torch.tensor([[0.0], [2 * math.log(3.0)]], requires_grad=True)
    _, entropy = chunked_log_probs(torch.tensor([[1.0]]), weight, torch.tensor([0]), temperature=2.0)
    (gradient,) = torch.autograd.grad(entropy.sum(), weight)
    by_hand = 3 / 32 * math.log(3.0)
    assert gradient.flatten().tolist() == pytest.approx([by_hand, -by_hand], abs=1e-6)


def test_double_precision_gradient_check():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 4, generator=generator, requires_grad=True)
    frozen = torch.randn(9, 4, generator=generator)
    log_probs, _ = chunked_log_probs(hidden, frozen, torch.tensor([0, 8, 3, 3, 1]), chunk=2)
    log_probs.sum().backward()
    assert frozen.grad is None
    expected = torch.autograd.grad((hidden @ frozen.T).log_softmax(-1)[range(5), [0, 8, 3, 3, 1]].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_weights_give_float32_log_probs():
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(6, 16, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(50, 16, generator=generator).bfloat16().requires_grad_()
    tokens = torch.arange(6)
    log_probs, _ = chunked_log_probs(hidden, weight, tokens, chunk=4)
    assert log_probs.dtype == torch.float32
    expected = (hidden @ weight.T).float().log_softmax(-1)[range(6), range(6)]
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    log_probs.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16
    assert weight.grad.abs().sum() > 0


def test_chunks_hold_about_the_same_numbers():
    assert chunk_size(152_064, 1 << 24) == 110  # 2**24 / 152064 = 110.3
    assert chunk_size(10**9, 1 << 24) == 16
