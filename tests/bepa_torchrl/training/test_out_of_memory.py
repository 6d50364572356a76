"""A device that is out of memory: exit code 3 and one line that names what to lower, wherever it happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from history_rows import ShortPromptPolicy, made_episodes

from bepa_torchrl.data.packing import Pack, TokenBudgetError
from bepa_torchrl.experiment.run_folder import CHANGEABLE
from bepa_torchrl.failures import INFRASTRUCTURE, exit_code, guarded
from bepa_torchrl.losses import BEPALoss, SFTLoss
from bepa_torchrl.policies.out_of_memory import DeviceMemoryError, token_budget_advice
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.testing import picture, small_checkpoint
from bepa_torchrl.training.optimization_step import gradient_step
from bepa_torchrl.training.precision import make_adamw
from osworld_gym.types import PromptContext

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."
    "\nSee documentation for Memory Management"
)


def fail(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError(MESSAGE)


@contextmanager
def told(pattern: str) -> Iterator[None]:
    """The block raises DeviceMemoryError in one line, exit code 3."""
    with pytest.raises(DeviceMemoryError, match=pattern) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert exit_code(caught.value) == INFRASTRUCTURE


def small_policy(**options: Any) -> TransformersPolicy:
    return TransformersPolicy(small_checkpoint(), preset="compact", max_new_tokens=8, **options)


def test_sampling_names_the_batch_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy()
    contexts = [PromptContext(word, [picture(0)]) for word in ("mute", "open the trash", "wait")]
    prompts = [prompt for prompt in policy.render(contexts) if prompt is not None]
    keys = [(0, i) for i in range(3)]
    expected = policy.sample(prompts, keys)
    longest = max(len(prompt.tokens) for prompt in prompts) + 8
    sample_batch = policy.sampler._sample_batch
    monkeypatch.setattr(policy.sampler, "_sample_batch", fail)
    half = longest * 3 // 2
    with told(
        rf"batch of 3 rows of up to {longest} tokens .*; set policy\.max_batch_tokens={half} or policy\.max_rows=1"
    ):
        policy.sample(prompts, keys)
    with told(rf"one row of {len(prompts[1].tokens) + 8} tokens .*, or lower policy\.max_new_tokens"):
        policy.sample(prompts[1:2], keys[1:2])

    def no_room(rows: Any, *arguments: Any) -> Any:
        assert len(rows) == 1, "the advice leads to batches of one row here"
        return sample_batch(rows, *arguments)

    monkeypatch.setattr(policy.sampler, "_sample_batch", no_room)
    policy.sampler.max_batch_tokens = half
    assert [row.tokens.tolist() for row in policy.sample(prompts, keys)] == [r.tokens.tolist() for r in expected]
    assert {"policy.max_batch_tokens", "policy.max_rows"} < set(CHANGEABLE)  # the message says resume=true


def test_the_optimisers_step_names_smaller_states(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ShortPromptPolicy(max_new_tokens=6)
    rows = made_episodes(policy, (1, 2))
    optimizer = make_adamw(policy.parameters(), lr=1e-3)
    count = sum(parameter.numel() for parameter in policy.parameters())
    monkeypatch.setattr(optimizer, "step", fail)
    advice = r"optimizer\.kind=adamw_8bit, train\.frozen=\[visual\] and adapters \(policy\.lora\.rank=64\)"
    with told(rf"a step allocates the moments of {count:,} trained parameters; .* not in use yet of {advice}"):
        gradient_step(BEPALoss(policy), optimizer, rows)


def test_master_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bepa_torchrl.training.precision._copy_of", fail)
    with told("while the optimiser copies 6 trained parameters; start a run with what is not in use yet of"):
        make_adamw([torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))], lr=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_do_not_fit(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy()
    folder = policy.save(tmp_path / "model")
    monkeypatch.setattr(type(policy.model), "to", fail)
    hint = r"set policy\.dtype=bfloat16, end" if dtype == "float32" else "; end"
    with told(rf"model: out of memory while 0\.0 GB of weights are moved to cpu.*{hint} what else holds"):
        load_policy(folder, dtype=dtype)


def test_elsewhere_torchs_own_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(fail, "bepa train") == INFRASTRUCTURE  # type: ignore[arg-type]
    advice = "lower policy.max_batch_tokens or train.max_tokens, or free the device's memory"
    assert capsys.readouterr().err == f"bepa train: CUDA out of memory; {advice}\n"


def test_other_errors_of_these_places_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy()
    prompts = [prompt for prompt in policy.render([PromptContext("mute", [picture(0)])]) if prompt is not None]

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(policy.sampler, "_sample_batch", broken)
    with pytest.raises(RuntimeError, match=r"^broken$") as caught:
        policy.sample(prompts, [(0,)])
    assert exit_code(caught.value) is None


@pytest.mark.parametrize("loss", [BEPALoss, SFTLoss])
def test_activation_checkpointing_is_advised_where_it_is_off_and_would_help(loss: Any) -> None:
    def advice(trained: torch.nn.Module | None) -> str:
        with pytest.raises(TokenBudgetError) as caught, token_budget_advice(Pack((0,), (10,)), trained):
            fail()
        return str(caught.value)

    rest = "shorten prompts by policy.max_prompt_tokens or policy.history"
    begin = "out of memory in a micro-batch of one row of 10 tokens, which cannot be split; "
    assert advice(loss(small_policy())) == f"{begin}set policy.activation_checkpointing=true, or {rest}"
    assert advice(loss(small_policy(activation_checkpointing=True))) == begin + rest
    assert advice(None) == begin + rest  # old log-probs keep no activations
