"""Which wrong weights the check after a weight sync notices, by kind of layer and by size, in bfloat16.

One parameter of each kind gets noise of a share of its own size (root mean square), in a small random model with an
untied head; the engine is the built-in policy with that parameter. Prints the mean absolute difference of log-probs as
a share of its limit, for each size, and from which size on a sync ends the run. Smaller ones are within what rounding
alone may do in a large model, and cannot be told from it by log-probs.

Each wrong parameter is compared on the same tokens, which the right engine has sampled.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.engine.weight_sync.probe import (
    NAMES,
    PROBE_KEYS,
    PROBE_TOKENS,
    TOLERANCES,
    difference,
    probe_prompts,
)
from bepa_torchrl.testing import small_checkpoint

SIZES = (0.03, 0.1, 0.3, 1.0)
#: kind → the name of one parameter of it; of a layer's parameters those of the first layer
PARAMETERS = {
    "embedding": "model.language_model.embed_tokens.weight",
    "q": "model.language_model.layers.0.self_attn.q_proj.weight",
    "k": "model.language_model.layers.0.self_attn.k_proj.weight",
    "v": "model.language_model.layers.0.self_attn.v_proj.weight",
    "o": "model.language_model.layers.0.self_attn.o_proj.weight",
    "gate": "model.language_model.layers.0.mlp.gate_proj.weight",
    "up": "model.language_model.layers.0.mlp.up_proj.weight",
    "down": "model.language_model.layers.0.mlp.down_proj.weight",
    "norm before attention": "model.language_model.layers.0.input_layernorm.weight",
    "norm before the MLP": "model.language_model.layers.0.post_attention_layernorm.weight",
    "last norm": "model.language_model.norm.weight",
    "head": "lm_head.weight",
    "tower: patches": "model.visual.patch_embed.proj.weight",
    "tower: qkv": "model.visual.blocks.0.attn.qkv.weight",
    "tower: attention's output": "model.visual.blocks.0.attn.proj.weight",
    "tower: MLP gate": "model.visual.blocks.0.mlp.gate_proj.weight",
    "tower: MLP up": "model.visual.blocks.0.mlp.up_proj.weight",
    "tower: MLP down": "model.visual.blocks.0.mlp.down_proj.weight",
    "tower: norm": "model.visual.blocks.0.norm1.weight",
    "tower: merger's norm": "model.visual.merger.ln_q.weight",
    "tower: merger": "model.visual.merger.mlp.2.weight",
}
_OPTIONS = {"preset": "paper", "history": "all", "max_prompt_tokens": 2048, "max_new_tokens": PROBE_TOKENS}


def small_trainer(folder: Path) -> TransformersPolicy:
    """A bfloat16 policy with random weights and a head of its own."""
    checkpoint = small_checkpoint()
    head = checkpoint.model.lm_head
    head.weight = torch.nn.Parameter(head.weight.detach().clone() * 0.9 + 0.02)
    for config in (checkpoint.model.config, checkpoint.model.config.text_config):
        config.tie_word_embeddings = False
    saved = TransformersPolicy(checkpoint, **_OPTIONS).save(folder / "policy")
    return load_policy(saved, dtype=torch.bfloat16, **_OPTIONS)


@torch.no_grad()
def perturb(policy: TransformersPolicy, name: str, size: float) -> None:
    """Adds noise of ``size`` times a parameter's root mean square."""
    weight = dict(policy.model.named_parameters())[name]
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.add_((size * weight.float().square().mean().sqrt() * noise).bfloat16())
    policy.encoder.forget()


def measured(policy: TransformersPolicy, rows: int) -> dict[str, dict[float, float]]:
    """Kind → size → the largest mean absolute difference, or KL, of a kind of prompt, as a share of its limit."""
    prompts, limit = probe_prompts(policy.renderer.processor)[:rows], TOLERANCES[torch.bfloat16]
    drawn = policy.sample(prompts, PROBE_KEYS[:rows])
    tokens, right = [row.tokens for row in drawn], [row.log_probs for row in drawn]
    found: dict[str, dict[float, float]] = {}
    for kind, name in PARAMETERS.items():
        weight = dict(policy.model.named_parameters())[name]
        before = weight.detach().clone()
        for size in SIZES:
            perturb(policy, name, size)
            with torch.no_grad():
                wrong, _ = policy.response_log_probs(prompts, tokens)
                weight.copy_(before)
            parts = [
                difference(torch.cat(right[part :: len(NAMES)]), torch.cat(wrong[part :: len(NAMES)]))
                for part in range(len(NAMES))
            ]
            found.setdefault(kind, {})[size] = max(max(d.mean / limit, d.kl / (2 * limit**2)) for d in parts)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=len(PROBE_KEYS), help="responses of the probe, a multiple of 3")
    rows = parser.parse_args().rows
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(small_trainer(Path(folder)), rows)
    print("largest difference as a share of its limit, by the noise's size | noticed from")
    for kind, by_size in found.items():
        noticed = next((f"{size:g}" for size, share in by_size.items() if share > 1), f"above {SIZES[-1]:g}")
        print(f"{kind:28s}" + "".join(f"{share:8.2f}" for share in by_size.values()) + f" | {noticed}")


if __name__ == "__main__":
    main()
