"""OSWorldEnv in a stock TorchRL collector, no BEPA: ``python examples/torchrl_collector.py [frames]``.

Four simulated desktops step together; the scripted policy clicks one tile after another. Any TensorDict module that
writes ``action`` (a string per row) can replace it.
"""

from __future__ import annotations

import argparse

from tensordict import NonTensorStack, TensorDictBase
from torchrl.collectors import Collector

from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.types import Action
from osworld_gym.uitars import format_response

TILE = 16  #: side of the simulated desktop's tiles, pixels


def sweep(td: TensorDictBase) -> TensorDictBase:
    """Clicks the tiles of the middle rows one after the other, from the left; step t clicks tile t."""
    columns = td["screenshot"].shape[-1] // TILE
    responses = []
    for step in td["step_count"].flatten().tolist():
        x, y = step % columns, 2 + step // columns
        click = Action("click", start=(x * TILE + TILE // 2, y * TILE + TILE // 2))
        responses.append(format_response("Let me see what is here.", [click]))
    return td.set("action", NonTensorStack(*responses))


def main(frames: int = 480) -> dict[str, float]:
    """Collects ``frames`` steps in batches of 120 and returns counts over all of them."""
    env = OSWorldEnv(provider="sim", num_envs=4, split="train")
    collector = Collector(env, sweep, frames_per_batch=120, total_frames=frames, trust_policy=True)
    counts = {"episodes": 0.0, "successes": 0.0, "masked": 0.0}
    for batch in collector:  # [4, 30]
        after = batch["next"]
        masked = after["env_error"]
        counts["episodes"] += int((after["done"] & ~masked).sum())
        counts["successes"] += int((after["success"] & after["done"]).sum())
        counts["masked"] += int((masked & after["done"]).sum())
        print(f"{batch.numel()} steps; so far {counts}")
    collector.shutdown()
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", type=int, nargs="?", default=480)
    main(**vars(parser.parse_args()))
