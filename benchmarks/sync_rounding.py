"""Rounding alone against the check after a weight sync: by how much engine and trainer differ with the same weights.

Simulated: logits of a given maximum, to which each of the two adds the error of its own kernels and which each rounds
to bfloat16. The error's size, 0.1 to 0.2 % of the maximum, covers what was published for a 7B (RMS per token between a
trainer and vLLM: 0.039 nats with bfloat16 heads, 0.022 with float32 heads; ServiceNow/Fast-LLM#525). Prints, for each
maximum, the largest statistic of all simulated syncs as a ratio of its limit, and how many would have ended the run,
beside the check that was used before (the maximum over 24 tokens, 0.05 nats).
"""

from __future__ import annotations

import argparse

import torch

from bepa_torchrl.scale.engine.weight_sync.probe import TOLERANCES, difference

TOKENS, VOCABULARY = 256, 1024
OLD_TOKENS, OLD_LIMIT = 24, 0.05


def simulated(largest: float, error: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs float32 ``[TOKENS]`` of sampled tokens, by two that compute the same logits with different errors."""
    logits = torch.randn(TOKENS, VOCABULARY, generator=generator)
    logits *= largest / logits.amax(-1, keepdim=True)
    engine, trainer = (
        (logits + error * largest * torch.randn(logits.shape, generator=generator)).bfloat16().float().log_softmax(-1)
        for _ in range(2)
    )
    tokens = torch.multinomial(engine.exp(), 1, generator=generator)
    return engine.gather(1, tokens)[:, 0], trainer.gather(1, tokens)[:, 0]


def false_alarms(largest: float, error: float, syncs: int) -> tuple[int, int, float, float]:
    """False alarms of the check, and of the old one; the largest mean and KL as shares of their limits."""
    generator = torch.Generator().manual_seed(0)
    limit = TOLERANCES[torch.bfloat16]
    alarms = old = 0
    mean = kl = 0.0
    for _ in range(syncs):
        engine, trainer = simulated(largest, error, generator)
        found = difference(engine, trainer)
        mean, kl = max(mean, found.mean / limit), max(kl, found.kl / (2 * limit**2))
        alarms += found.mean > limit or found.kl > 2 * limit**2
        old += bool((engine - trainer)[:OLD_TOKENS].abs().max() > OLD_LIMIT)
    return alarms, old, mean, kl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--syncs", type=int, default=1000)
    syncs = parser.parse_args().syncs
    print(f"of {syncs} syncs with equal weights: false alarms | the old check's | largest mean, KL / their limits")
    for largest in (8.0, 16.0, 32.0):
        for error in (1e-3, 2e-3):
            alarms, old, mean, kl = false_alarms(largest, error, syncs)
            print(f"logits of {largest:2.0f}, error {error:.1%}: {alarms:4d} | {old:4d} | {mean:.2f}, {kl:.2f}")


if __name__ == "__main__":
    main()
