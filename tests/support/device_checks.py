"""What a policy does in a run, on the pretend accelerator beside the CPU; called in a process of its own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from built_in_engine import access_to, served
from history_rows import required
from opencua_checkpoint import write_opencua_checkpoint
from pretend_device import DEVICE, moves_in_place, on_device, pretend_device
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.data.step_rows import Turn, episode_rows, row_list, stack_rows, step_contexts
from bepa_torchrl.experiment.record_lines import trained_line
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.policies.transformers.lora import Lora, adapter_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.rollout.old_log_prob import fill_old_log_probs
from bepa_torchrl.rollout.weight_sync import on_cpu
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.engine.weight_sync.adapters import AdapterSync, write_adapter
from bepa_torchrl.scale.engine.weight_sync.folder import complete_weights, fingerprint, write_checkpoint
from bepa_torchrl.scale.rollouts.remote.weights import WeightsTag, decode_weights, encode_weights
from bepa_torchrl.scale.sharding.broadcast import decode_rows, encode_rows
from bepa_torchrl.scale.sharding.sampling_copy import SamplingCopy
from bepa_torchrl.storage.plain import plain_row
from bepa_torchrl.testing import picture, small_checkpoint
from bepa_torchrl.training.checkpoint import Checkpoints, PolicyWeights
from bepa_torchrl.training.optimization_step import GroupStepper, gradient_step, has_signal, parameter_groups
from bepa_torchrl.training.precision import make_adamw
from osworld_gym.types import PromptContext, StopReason

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "opencua")
TUNINGS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "frozen-tower": {"train_vision": False},
    "lora": {"lora": Lora(rank=4, alpha=8)},
}
_PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "qwen2_5_vl": {"preset": "compact"},
    "qwen3_vl": {"preset": "compact"},
    "opencua": {"action_text": "opencua", "preset": "action_history", "history": "last_k", "history_images": 2},
}
_STEPS = (2, 1, 2, 1)  #: of the episodes, two per group
_MAX_TOKENS = 1200
#: differences of log-probs between the two, nats: the attention of the pretend device is another formula
_CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.15}


class Pair:
    """The same policy on the CPU and on the pretend accelerator.

    Args:
        family: of the checkpoint, one of :data:`FAMILIES`.
        tuning: one of :data:`TUNINGS`.
        dtype: of the weights.
        folder: for files.
    """

    def __init__(self, family: str, tuning: str, dtype: torch.dtype, folder: Path) -> None:
        self.family, self.folder, self.dtype, self.close = family, folder, dtype, _CLOSE[dtype]
        self.options = {"max_new_tokens": 5, **_PROMPTS[family], **TUNINGS[tuning]}
        if dtype != torch.float32:
            self.options["activation_checkpointing"] = True
        self.checkpoint = folder / "checkpoint"
        if family == "opencua":
            write_opencua_checkpoint(self.checkpoint, spread=0.1)
        else:
            made = small_checkpoint(family=family, spread=0.1)
            TransformersPolicy(made, **_PROMPTS[family]).save(self.checkpoint)
        self.cpu, self.device = self.load("cpu"), self.load(DEVICE)

    def load(self, device: str) -> TransformersPolicy:
        with moves_in_place():
            return load_policy(self.checkpoint, dtype=self.dtype, device=device, **self.options)

    def rows(self) -> TensorDictBase:
        """Rows of episodes, with advantages; some prompts are prefixes of others."""
        made: list[TensorDictBase] = []
        for number, count in enumerate(_STEPS):
            texts = [" ".join(["open the trash"] * (1 + number + step)) for step in range(count)]
            pngs = [picture(10 * number + step, (64, 64 + 32 * (number % 2))) for step in range(count)]
            tokens = [self.cpu.encode_response(text) for text in texts]
            contexts = step_contexts(f"task {number // 2}", pngs, texts, tokens)
            prompts = required(self.cpu.render(contexts))
            responses = self.cpu.sample(prompts, [(7, number, step) for step in range(count)])
            turns = [Turn(*turn) for turn in zip(pngs, prompts, responses, strict=True)]
            made += row_list(
                episode_rows(
                    turns,
                    task_id=f"task-{number // 2}",
                    instruction=f"task {number // 2}",
                    group_id=number // 2,
                    slot=number % 2,
                    source=K.Source.on_policy,
                    policy_version=0,
                    reward=float(number % 2),
                    stop=StopReason.finished,
                    plan_free=True,
                )
            )
        for row in made:
            row[K.OFF_POLICY] = torch.tensor([int(row[K.GROUP_ID]) == 1 and bool(row[K.SLOT])])
            row[K.ADVANTAGE] = torch.full((1, 1), 1.0 if int(row[K.SLOT]) else -0.7)
        return stack_rows(made)

    def ragged(self) -> list[Prompt]:
        """Prompts of different lengths: none, one and two screenshots, of different sizes."""
        screens = [picture(1), picture(2, (192, 112)), picture(3)]
        texts = ["open the trash", "hello world"]
        contexts = [PromptContext("open " * (1 + 3 * n), screens[: n + 1], texts[:n]) for n in range(3)]
        return required(self.cpu.render([*contexts, contexts[0]]))


def check_policy(folder: Path, family: str, tuning: str, dtype: torch.dtype, engine: bool) -> None:
    """Load, sample, score, update, save, resume, publish, export; raises if one fails or differs from the CPU.

    ``engine``: also syncs an engine behind HTTP.
    """
    with pretend_device():
        pair = Pair(family, tuning, dtype, folder)
        _check_loaded(pair)
        _check_samples(pair)
        _check_sampling_copy(pair)
        batches = _check_old_log_probs(pair)
        _check_update(pair, *batches)
        _check_rows_leave(batches[1])
        _check_weights_leave(pair)
        _check_engine_files(pair)
        if engine and family != "opencua":  # engines do not sample it
            _check_engine(pair)
        _check_export(pair)


def _check_loaded(pair: Pair) -> None:
    model = pair.device.model
    # rotary frequencies are buffers; transformers keeps a copy of them as an attribute
    assert all(on_device(tensor) for tensor in (*model.parameters(), *model.buffers()))
    tied = [policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
            for policy in (pair.cpu, pair.device)]  # fmt: skip
    assert tied[0] == tied[1]
    weights = [
        fingerprint(complete_weights(p.named_weights(), _shapes(p)), pair.dtype) for p in (pair.cpu, pair.device)
    ]
    assert weights[0] == weights[1]


def _shapes(policy: TransformersPolicy) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in policy.named_weights()}


def _check_samples(pair: Pair) -> None:
    prompts = pair.ragged()
    keys = [(3, 1, row) for row in range(len(prompts))]
    for temperature in (1.0, 2.0, 0.0):
        expected, found = (policy.sample(prompts, keys, temperature=temperature) for policy in (pair.cpu, pair.device))
        for mine, other in zip(found, expected, strict=True):
            assert_on_cpu(mine.tokens, mine.log_probs)
            if pair.dtype == torch.float32:  # rounding changes tokens in bfloat16
                assert mine.tokens.tolist() == other.tokens.tolist(), (temperature, mine, other)
                torch.testing.assert_close(mine.log_probs, other.log_probs, atol=pair.close, rtol=0)
    pickle.dumps(found)  # a rollout service answers with them


def _check_sampling_copy(pair: Pair) -> None:
    """Several ranks sample with a whole copy, which gets the weights one by one."""
    copy = pair.load(DEVICE)
    with torch.no_grad():
        for weight in copy.model.parameters():
            weight.mul_(0.5)
    copy.version = -1

    def weights(_dtype: torch.dtype | None) -> Any:
        return iter((adapter_weights(pair.device.model) or pair.device.model.state_dict()).items())

    sampling = SamplingCopy(lambda: nullcontext((copy, copy)), pair.device, weights)
    sampling.sync()
    names = adapter_weights(copy.model) or copy.model.state_dict()
    own = pair.device.model.state_dict()
    assert all(torch.equal(weight.cpu(), own[name].cpu()) for name, weight in names.items())


def _check_old_log_probs(pair: Pair) -> tuple[TensorDictBase, TensorDictBase]:
    """The rows of the CPU's update and of the accelerator's, with old log-probs."""
    batches = pair.rows(), pair.rows()
    for policy, rows in zip((pair.cpu, pair.device), batches, strict=True):
        fill_old_log_probs(policy, row_list(rows), max_tokens=_MAX_TOKENS)
    for expected, found in zip(*map(row_list, batches), strict=True):
        assert_on_cpu(*tensors_of(found))
        torch.testing.assert_close(found[K.OLD_LOG_PROB], expected[K.OLD_LOG_PROB], atol=pair.close, rtol=0)
    return batches


def _stepper(policy: TransformersPolicy) -> GroupStepper:
    return GroupStepper(policy, make_adamw(parameter_groups(policy, lr=1e-3), eps=1e-3), max_tokens=_MAX_TOKENS)


def _step(stepper: GroupStepper, rows: TensorDictBase) -> dict[str, float]:
    """One optimiser step, as of a run with every diagnostic."""
    loss = BEPALoss(stepper.policy, keep_tokens=True, rollout_correction="token", anchor_weight=0.1)
    output = gradient_step(
        loss, stepper.optimizer, rows, keep=has_signal(rows, loss), max_tokens=stepper.max_tokens, clip_norm=0.5
    )
    stepper.policy.version += 1
    assert all(type(value) is float for value in output.values()), output
    return output


def _check_update(pair: Pair, on_cpu_rows: TensorDictBase, on_device_rows: TensorDictBase) -> None:
    """Two steps; the second also after a checkpoint was saved and loaded by another policy on the accelerator."""
    own, other = _stepper(pair.device), _stepper(pair.cpu)
    _compare(_step(own, on_device_rows), _step(other, on_cpu_rows), pair)
    checkpoints = Checkpoints(pair.folder / "checkpoints", keep=1)
    path = checkpoints.save({"weights": PolicyWeights(pair.device), "stepper": own}, step=1)
    resumed = _stepper(pair.load(DEVICE))
    checkpoints.load(path, {"weights": PolicyWeights(resumed.policy), "stepper": resumed})
    assert resumed.policy.version == 1
    for state in resumed.optimizer.state.values():
        assert all(on_device(state[moment]) for moment in ("exp_avg", "exp_avg_sq"))
    again = _step(resumed, stack_rows(row.clone() for row in row_list(on_device_rows)))
    outputs = _step(own, on_device_rows)
    assert again == outputs, {name: (again[name], outputs[name]) for name in outputs if again[name] != outputs[name]}
    assert _same(pair.device, resumed.policy)
    _compare(outputs, _step(other, on_cpu_rows), pair)


def _compare(found: Mapping[str, float], expected: Mapping[str, float], pair: Pair) -> None:
    assert found.keys() == expected.keys()
    if pair.dtype == torch.float32:
        found_all, expected_all = (torch.tensor([v[name] for name in expected]) for v in (found, expected))
        torch.testing.assert_close(found_all, expected_all, atol=1e-3, rtol=1e-3, equal_nan=True)
    assert found["grad_norm"] > 0


def _same(a: TransformersPolicy, b: TransformersPolicy) -> bool:
    others = dict(b.model.state_dict())
    return all(torch.equal(weight.cpu(), others[name].cpu()) for name, weight in a.model.state_dict().items())


def _check_rows_leave(rows: TensorDictBase) -> None:
    """Rows after an update: records, checkpoints of collected rows, and what rank 0 sends to the others."""
    for row in row_list(rows):
        assert_on_cpu(*tensors_of(row))
        assert_on_cpu(*(value for _, value in plain_row(row) if isinstance(value, Tensor)))
    json.dumps(trained_line(1, [row for row in row_list(rows) if int(row[K.GROUP_ID]) == 0 and not int(row[K.SLOT])]))
    assert len(decode_rows(encode_rows(row_list(rows)))) == len(rows)
    pickle.dumps(row_list(rows)[0])


def _check_weights_leave(pair: Pair) -> None:
    """Weights by the wire between clusters, and to a sampler on the CPU."""
    policy = pair.device
    encoded = encode_weights(WeightsTag("run", 3), policy.named_weights())
    tensors = decode_weights(encoded, {})
    by_wire = {name: tensors[key] for name, key in encoded.names.items()}
    check_sent_weights(pair, by_wire)
    receiver = pair.load("cpu")
    receiver.load_weights(on_cpu(policy.named_weights()), version=3)
    receiver.load_weights(by_wire.items(), version=4)
    assert not any(on_device(weight) for weight in receiver.model.parameters())


def check_sent_weights(pair: Pair, weights: Mapping[str, Tensor]) -> None:
    """Weights that have left the process are the policy's, and on the CPU."""
    own = dict(pair.device.named_weights())
    assert weights.keys() == own.keys()
    assert_on_cpu(*weights.values())
    assert all(torch.equal(weight, own[name].cpu()) for name, weight in weights.items())


def _check_engine_files(pair: Pair) -> None:
    """An engine's checkpoint and adapters."""
    policy, processor = pair.device, pair.device.renderer.processor
    if adapters := adapter_weights(policy.model):
        write_adapter(pair.folder / "adapter", adapters, model=policy.model, dtype=pair.dtype)
    complete = complete_weights(policy.named_weights(), _shapes(policy))
    write_checkpoint(
        pair.folder / "engine-checkpoint",
        complete,
        model=policy.model,
        tokenizer=processor.tokenizer,
        image_processor=processor.patcher.processor,
        dtype=pair.dtype,
    )


def _check_engine(pair: Pair) -> None:
    """An engine behind HTTP, which is verified after each sync."""
    policy = pair.device
    with served(pair.folder / "engine") as server:
        ways: tuple[AdapterSync, ...] = ("separate", "merged") if adapter_weights(policy.model) else ("merged",)
        for adapters_by in ways:
            sampler = VLLMSampler(policy, access=access_to(server), start_timeout=60.0, adapters=adapters_by)
            sampler.sync()
            with torch.no_grad():
                for weight in policy.parameters():
                    if weight.requires_grad:
                        weight.mul_(1.05)
            policy.version += 1
            sampler.sync()
            for response in sampler.sample(pair.ragged(), [(1, row) for row in range(4)]):
                assert_on_cpu(response.tokens, response.log_probs)
            assert all(type(value) is float for value in sampler.drain_metrics().values())
            sampler.close()


def _check_export(pair: Pair) -> None:
    """The final folder, opened on the CPU, scores as the policy on the accelerator."""
    saved = pair.device.save(pair.folder / "policy")
    options = {name: value for name, value in pair.options.items() if name != "lora"}
    opened = load_policy(saved, dtype=pair.dtype, **options)
    prompts = pair.ragged()
    responses = [pair.cpu.encode_response("open the trash")] * len(prompts)
    with torch.no_grad():
        expected, found = (policy.response_log_probs(prompts, responses)[0] for policy in (pair.device, opened))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other.cpu(), atol=pair.close, rtol=0)


def tensors_of(row: TensorDictBase) -> list[Tensor]:
    """The tensors of a row."""
    return [value for value in row.values(include_nested=True, leaves_only=True) if isinstance(value, Tensor)]


def assert_on_cpu(*tensors: Tensor) -> None:
    """Raises AssertionError with the shapes of tensors that are on the accelerator."""
    left = [list(tensor.shape) for tensor in tensors if on_device(tensor)]
    assert not left, f"{len(left)} of {len(tensors)} tensors are on the accelerator: {left}"
