"""Memory and time of log-probs with their gradients at a 152k vocabulary: ours against stock TorchRL, as ratios.

Both sides run TorchRL's GRPOLoss, forward and backward, on the same rows and the same small Qwen2.5-VL with Qwen's
vocabulary. Stock: the actor returns ``LLMMaskedCategorical`` over shifted full-sequence logits ``[B, T, V]``, as
``TransformersWrapper`` does. Ours: ``TransformersPolicy.get_dist``. Each runs in a separate process; memory is the
process's peak resident size minus its size before the loss.

    python -m benchmarks.log_prob_memory --rows 4 --prompt 128 --response 64
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.modules import LLMMaskedCategorical
from torchrl.objectives.llm import GRPOLoss
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.data import keys
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.tensordict_io import left_pad, read_rows, response_rows
from bepa_torchrl.policies.transformers.batching import hidden_states, pack
from bepa_torchrl.policies.transformers.checkpoint import Checkpoint
from bepa_torchrl.policies.transformers.mrope import position_rule
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing.tiny_config import image_processor_config, tiny_config
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer

VOCABULARY = 151_936  #: rows of Qwen2.5-VL's output embedding


class StockActor(TensorDictModuleBase):
    """Full logits of the whole sequence, shifted by a copy, as TorchRL's TransformersWrapper computes them.

    The loss's action is ("tokens", "full"): prompt and response. ``mask`` is True at response tokens.
    """

    def __init__(self, policy: TransformersPolicy) -> None:
        super().__init__()
        self.in_keys: list[Any] = []
        self.out_keys: list[Any] = []
        self.model = policy.model
        self._policy = (policy,)

    def get_dist(self, tensordict: TensorDictBase, logits_key: str = "logits") -> LLMMaskedCategorical:
        (policy,) = self._policy
        prompts, responses = read_rows(tensordict)
        rows = [Prompt(torch.cat((p.tokens, r)), p.images) for p, r in zip(prompts, responses, strict=True)]
        packed = pack(
            rows,
            patcher=policy.renderer.processor.patcher,
            image_token_id=policy.renderer.processor.image_token_id,
            position_rule=position_rule(policy.model),
            device=policy.device,
        )
        logits = self.model.lm_head(hidden_states(self.model, packed, policy.encoder, use_cache=False))
        shifted = torch.cat([torch.zeros_like(logits[:, :1]), logits[:, :-1]], 1)
        lengths = torch.tensor([len(r) for r in responses])
        mask = left_pad([torch.ones(int(n), dtype=torch.bool) for n in lengths], shifted.shape[1])
        tensordict.set(logits_key, shifted)
        return LLMMaskedCategorical(logits=shifted, mask=mask)


def make_policy() -> TransformersPolicy:
    """The tiny configuration with Qwen's vocabulary size."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["open the trash"])
    config = tiny_config(tokenizer)
    config.get_text_config().vocab_size = VOCABULARY
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    settings = image_processor_config()
    names = ("patch_size", "merge_size", "temporal_patch_size", "size", "image_mean", "image_std")
    processor = Qwen2VLImageProcessorPil(**{name: settings[name] for name in names})
    ends = (tokenizer.get_vocab()["<|im_end|>"],)
    return TransformersPolicy(Checkpoint(model, tokenizer, processor, ends), preset="compact")


def make_rows(policy: TransformersPolicy, rows: int, prompt: int, response: int) -> TensorDictBase:
    """``rows`` rows of equal length, one 128 x 128 picture each, random tokens."""
    generator = torch.Generator().manual_seed(0)
    numbers = np.random.default_rng(0)
    prompts, responses = [], []
    for _ in range(rows):
        buffer = io.BytesIO()
        Image.fromarray(numbers.integers(0, 256, (128, 128, 3), dtype=np.uint8)).save(buffer, format="PNG")
        words = torch.randint(300, VOCABULARY, (prompt - 64,), generator=generator)
        image = torch.full((64,), policy.renderer.processor.image_token_id)
        prompts.append(Prompt(torch.cat((image, words)), (buffer.getvalue(),)))
        tokens = torch.randint(300, VOCABULARY, (response,), generator=generator)
        responses.append(Response("", tokens, torch.full((response,), -12.0)))
    td = response_rows(prompts, responses)
    full = [torch.cat((p.tokens, a.tokens)) for p, a in zip(prompts, responses, strict=True)]
    for row, tokens, sampled in zip(td.tensordicts, full, responses, strict=True):
        row.set(("tokens", "full"), tokens)
        row.set(("log_probs", "full"), left_pad([sampled.log_probs], len(tokens))[0])
        row.set(keys.ADVANTAGE, torch.ones(1, 1))
    return td


def measure(side: str, rows: int, prompt: int, response: int) -> dict[str, float]:
    """Peak bytes above the start, seconds of one loss with backward, the loss, and a gradient norm."""
    policy = make_policy()
    td = make_rows(policy, rows, prompt, response)
    actor: Any = policy if side == "ours" else StockActor(policy)
    loss = GRPOLoss(actor, clip_epsilon=(0.2, 0.3), entropy_bonus=False)
    if side == "ours":
        loss.set_keys(action=keys.RESPONSE_TOKENS, sample_log_prob=keys.OLD_LOG_PROB)
    weight = policy.model.get_input_embeddings().weight
    weight.grad = torch.zeros_like(weight)  # needed by both sides, so not part of the comparison
    before = _peak()
    start = time.perf_counter()
    value = loss(td).loss_objective
    value.backward()
    seconds = time.perf_counter() - start
    norm = float(torch.linalg.vector_norm(_gradient(weight)))
    return {"bytes": _peak() - before, "seconds": seconds, "loss": float(value.detach()), "norm": norm}


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt, 64 of them image tokens")
    parser.add_argument("--response", type=int, default=64, help="tokens of a response")
    parser.add_argument("--side", choices=("ours", "stock"), help="measure one side in this process, print JSON")
    options = parser.parse_args()
    sizes = (options.rows, options.prompt, options.response)
    if options.side:
        print(json.dumps(measure(options.side, *sizes)))
        return
    found = {}
    for side in ("stock", "ours"):
        flags = [f"--{name}={value}" for name, value in zip(("rows", "prompt", "response"), sizes, strict=True)]
        command = [sys.executable, "-m", "benchmarks.log_prob_memory", f"--side={side}", *flags]
        found[side] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        line = found[side]
        memory = f"{line['bytes'] / 1e6:8.0f} MB  {line['seconds']:6.2f} s"
        print(f"{side:6} {memory}  loss {line['loss']:.6f}  |grad| {line['norm']:.6f}")
    stock, ours = found["stock"], found["ours"]
    print(f"stock / ours: memory {stock['bytes'] / ours['bytes']:.1f}x, time {stock['seconds'] / ours['seconds']:.1f}x")


if __name__ == "__main__":
    main()
