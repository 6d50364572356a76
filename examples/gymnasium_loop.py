"""OSWorld tasks in a plain Gymnasium loop, no BEPA and no torch: ``python examples/gymnasium_loop.py [episodes]``.

The policy clicks at random and finishes now and then; replace it by a model. It gets the screenshot and the instruction
and responds with text in the UI-TARS format.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import gymnasium

from osworld_gym.types import Action
from osworld_gym.uitars import format_response


def random_policy(observation: dict[str, Any], rng: random.Random) -> str:
    """A click anywhere on the screen, or (one time in ten) ``finished``."""
    height, width, _ = observation["screenshot"].shape
    if rng.random() < 0.1:
        return format_response("I think that is all.", [Action("finished")])
    point = (rng.randrange(width), rng.randrange(height))
    return format_response(f"I was asked: {observation['instruction']}", [Action("click", start=point)])


def main(episodes: int = 5) -> list[dict[str, Any]]:
    """Plays ``episodes`` and returns the ``info`` of the last step of each."""
    rng = random.Random(0)
    env = gymnasium.make("osworld_gym:OSWorld-v0", provider="sim", split="train")
    endings = []
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        steps, done = 0, False
        while not done:
            observation, reward, terminated, truncated, info = env.step(random_policy(observation, rng))
            steps, done = steps + 1, terminated or truncated
        if info["env_error"]:  # the desktop failed, not the policy: ignore the episode
            print(f"{info['task_id']}: left out, {info['failure']}")
            continue
        print(f"{observation['instruction']!r}: {info['stop_reason']} after {steps} steps, reward {reward:g}")
        endings.append(info)
    env.close()
    return endings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=int, nargs="?", default=5)
    main(**vars(parser.parse_args()))
