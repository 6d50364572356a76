"""Whether a trained policy has taken over the expert's dialect, and how well it acts in it.

python -m recipes.study.dialect runs/study/seed3/replacement/policy runs/study/seed3/level1/policy

Plays the training tasks of the simulated desktop with each checkpoint, and with the base policy. An episode counts as
one in the expert's dialect if at least half of its responses start as the expert's do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.failures import guarded
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.rollout.episodes import EpisodeResult
from osworld_gym.tasks.suites.sim.suite import KNOWN, UNKNOWN, sim_suite
from recipes.tiny.dialect import share_in_dialect
from recipes.tiny.evaluate import play, success_rate

HEADER = ("checkpoint", "tasks", "responses in the dialect", "episodes in it", "their success", "success of the others")


def row(results: Sequence[EpisodeResult]) -> tuple[str, ...]:
    """Share of responses and of episodes in the dialect, and the success rates in it and without it, in %."""
    inside = [result for result in results if share_in_dialect([result]) >= 0.5]
    outside = [result for result in results if share_in_dialect([result]) < 0.5]
    shares = (share_in_dialect(results), len(inside) / len(results))
    rates = (f"{100 * success_rate(found):.1f}" if found else "–" for found in (inside, outside))
    return (*(f"{100 * share:.1f}" for share in shares), *rates)


def lines(folders: Sequence[Path], episodes: int, seed: int) -> Iterator[str]:
    """A Markdown table, two rows per checkpoint: known and unknown training tasks.

    Args:
        folders: checkpoints.
        episodes: per task.
        seed: the seed of desktops and sampling.
    """
    yield "| " + " | ".join(HEADER) + " |"
    yield "|" + "---|" * len(HEADER)
    for folder in folders:
        policy = load_policy(folder, preset="compact", max_new_tokens=48)
        for tag in (KNOWN, UNKNOWN):
            tasks = [task for task in sim_suite().split("train") if tag in task.tags]
            cells = row(play(policy, tasks, episodes=episodes, seed=seed))
            name = "base" if folder == tiny_checkpoint() else "/".join(folder.resolve().parts[-3:-1])
            yield "| " + " | ".join((name, tag, *cells)) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for bad input, 3 for infrastructure."""
    parser = argparse.ArgumentParser(prog="python -m recipes.study.dialect", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, help="folders policy/ of finished runs")
    parser.add_argument("--episodes", type=int, default=4, help="per task (default: 4)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    def job() -> int:
        for line in lines([tiny_checkpoint(), *options.checkpoints], options.episodes, options.seed):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        return 0

    return guarded(job, "dialect")


if __name__ == "__main__":
    sys.exit(main())
