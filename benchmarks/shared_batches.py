"""Asynchronous rollouts with vLLM: callers that share the engine's batches against one batch after the other.

Threads play episodes of several turns; between two turns each waits for a simulated desktop (lognormal). The rollout
service is asked by all of them, once as it is, once with a single thread that samples what waits and then waits for all
of it. Both get the same responses from the same engine; the last line is the ratio of turns per second.

    python -m benchmarks.shared_batches                  # a tiny shape on a CPU, two minutes

Requires vLLM (docs/vllm.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from benchmarks.rollout_engine import make_policy, screenshot
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from osworld_gym.types import PromptContext


class SwitchedSampler(VLLMSampler):
    """An engine whose callers share its batches, or that samples one batch after the other, as the baseline."""

    shared = True

    @property
    def concurrent(self) -> bool:
        return self.shared


def play(service: RolloutService, options: argparse.Namespace) -> tuple[list[list[int]], float]:
    """The tokens of every turn, and turns per second."""

    def episode(number: int) -> list[list[int]]:
        numbers = np.random.default_rng(number)
        context, found = PromptContext(f"close {number}", []), []
        for turn in range(options.turns):
            context = replace(context, screenshots=(*context.screenshots, screenshot(numbers, options.screen)))
            time.sleep(numbers.lognormal(np.log(options.latency), 0.8))  # the desktop
            (prompt,) = service.render([context])
            assert prompt is not None, "a prompt is longer than --window"
            ((response,), _) = service.sample([prompt], [(3, 0, number, 0, turn)], 1.0)
            tokens = response.tokens.tolist()
            found.append(tokens)
            context = replace(
                context,
                responses=(*context.responses, response.text),
                response_tokens=(*context.response_tokens, tuple(tokens)),
            )
        return found

    start = time.perf_counter()
    with ThreadPoolExecutor(options.desktops) as threads:
        found = [turn for turns in threads.map(episode, range(options.episodes)) for turn in turns]
    return found, len(found) / (time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 96), ("layers", 2), ("vocabulary", 0), ("tokens", 24), ("window", 16384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("desktops", 8), ("episodes", 16), ("turns", 4), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--latency", type=float, default=0.3, help="median seconds of the desktop between two turns")
    parser.add_argument("--screen", type=int, nargs=2, default=(192, 192), metavar=("WIDTH", "HEIGHT"))
    options = parser.parse_args(arguments)
    trainer = make_policy(options)
    engine = SwitchedSampler(trainer, own_weights=True, kv_cache_gb=1.0, max_rows=64)
    kinds = {"shared batches": True, "one batch after the other": False}
    turns: dict[str, list[list[int]]] = {}
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    try:
        engine.load_weights(list(trainer.named_weights()), version=1)
        for number in range(options.rounds):
            for name, shared in kinds.items():
                engine.shared = shared
                engine.load_weights(list(trainer.named_weights()), version=number + 2)  # an empty prefix cache
                turns[name], speed = play(RolloutService(engine), options)
                speeds[name].append(speed)
                print(f"{name}: {speed:.2f} turns/s")
    finally:
        engine.close()
    equal = sum(a == b for a, b in zip(*turns.values(), strict=True))
    print(f"{equal} of {options.episodes * options.turns} turns equal, {torch.get_num_threads()} threads of torch")
    shared, batched = (float(np.mean(speeds[name])) for name in kinds)
    print(f"shared batches: {shared / batched:.2f}x the turns per second of one batch after the other")


if __name__ == "__main__":
    main()
