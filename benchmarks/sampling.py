"""Responses per second of our sampler and of transformers' generate, for the same tiny Qwen2.5-VL and prompts.

Each prompt has its own 128 x 128 screenshot (64 image tokens); every response has exactly ``--tokens`` tokens, so both
sides do the same work. Both include decoding the PNGs and the vision tower.

    python -m benchmarks.sampling --responses 256 --batch 128
"""

from __future__ import annotations

import argparse
import io
import time

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.checkpoint import Checkpoint
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing.tiny_config import image_processor_config, tiny_config
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.types import PromptContext


def make_policy(tokens: int, batch: int) -> TransformersPolicy:
    """A policy with random weights and no end token, so that all responses have full length."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["open the trash and empty it", "Thought: wait\nAction: wait()", "Last: none"])
    model = Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer)).eval()
    settings = image_processor_config()
    names = ("patch_size", "merge_size", "temporal_patch_size", "size", "image_mean", "image_std")
    processor = Qwen2VLImageProcessorPil(**{name: settings[name] for name in names})
    ends = (tokenizer.get_vocab()["<|im_end|>"],)
    checkpoint = Checkpoint(model, tokenizer, processor, ends)
    # no cache of decoded screenshots, which the side that is measured first would fill for the others
    policy = TransformersPolicy(
        checkpoint, preset="compact", max_new_tokens=tokens, max_rows=batch, image_cache_gb=0, image_threads=0
    )
    policy.sampler.end_token_ids = frozenset()
    policy.sampler.blocked_ids = sorted(policy.renderer.processor.special_ids)
    return policy


def make_prompts(policy: TransformersPolicy, count: int) -> list[Prompt]:
    numbers = np.random.default_rng(0)
    contexts = []
    for i in range(count):
        buffer = io.BytesIO()
        tiles = numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))).save(buffer, format="PNG")
        contexts.append(PromptContext("open the trash" + " and empty it" * (i % 4), [buffer.getvalue()]))
    return [prompt for prompt in policy.render(contexts) if prompt is not None]


def ours(policy: TransformersPolicy, prompts: list[Prompt]) -> None:
    policy.sample(prompts, [(i,) for i in range(len(prompts))])


def generate(policy: TransformersPolicy, prompts: list[Prompt], batch: int, tokens: int) -> None:
    blocked = [[token] for token in policy.sampler.blocked_ids]
    for i in range(0, len(prompts), batch):
        inputs = policy.renderer.processor.model_inputs(prompts[i : i + batch])
        options = {"do_sample": True, "top_k": 0, "bad_words_ids": blocked, "eos_token_id": None}
        with torch.inference_mode():
            policy.model.generate(**inputs, **options, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=17)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = make_policy(options.tokens, options.batch)
    prompts = make_prompts(policy, options.responses)
    few = prompts[: max(1, options.responses // 16)]
    sides = {
        "ours": (lambda rows: ours(policy, rows), prompts),
        f"generate, batch {options.batch}": (
            lambda rows: generate(policy, rows, options.batch, options.tokens),
            prompts,
        ),
        "generate, batch 1": (lambda rows: generate(policy, rows, 1, options.tokens), few),
    }
    rates = {}
    for name, (run, rows) in sides.items():
        run(rows[:8])  # warm up
        start = time.process_time()
        run(rows)
        rates[name] = len(rows) / (time.process_time() - start)
        print(f"{name:22} {rates[name]:7.0f} responses/s  {rates[name] * options.tokens:8.0f} tokens/s")
    mine = rates.pop("ours")
    for name, rate in rates.items():
        print(f"ours / {name}: {mine / rate:.1f}x")


if __name__ == "__main__":
    main()
