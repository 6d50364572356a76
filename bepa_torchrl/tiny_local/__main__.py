"""``python -m bepa_torchrl.tiny_local``: clones the local policy from recordings and writes its checkpoint; resumable.

The recordings are made by ``bepa record`` (both styles, suite ``varied``, ``--screen 640x368``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bepa_torchrl.experts.recording import Episode, load_recordings
from bepa_torchrl.failures import guarded
from bepa_torchrl.tiny.checkpoint import write_checkpoint, write_notes
from bepa_torchrl.tiny_local.cloning import Library
from bepa_torchrl.tiny_local.config import SCREEN, local_image_processor_config
from bepa_torchrl.tiny_local.training import Cloning, Recipe, local_tokenizer, run
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task


def read_library(folder: Path, tasks: Sequence[Task], seeds: int, screen: tuple[int, int]) -> Library:
    """The recordings of ``tasks`` with seeds 0 to ``seeds - 1`` on a screen of (width, height) pixels.

    Raises:
        ValueError: a style is missing for a task.
        TraceError: a recording is damaged.
    """
    native, expert = (
        list(load_recordings(folder, [Episode(task, style, s) for task in tasks for s in range(seeds)], screen))
        for style in ("native", "expert")
    )
    return Library.of(native, expert, [task.id for task in tasks if "known" in task.tags])


def train(options: argparse.Namespace) -> int:
    """Trains and writes the checkpoint."""
    torch.set_num_threads(options.threads)
    library = read_library(options.recordings, load_suite(options.suite).tasks, options.seeds, SCREEN)
    recipe = replace(Recipe(seed=options.seed), steps=options.steps)
    tokenizer = local_tokenizer(library)
    training = Cloning(tokenizer, library, recipe)
    run(training, options.state, log=lambda line: print(line, flush=True))
    notes = {
        "command": f"python -m bepa_torchrl.tiny_local --steps {options.steps} --seed {options.seed}",
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "cpu_seconds": round(training.seconds, 1),
    }
    write_checkpoint(options.out, training.model, tokenizer, notes)
    config = json.dumps(local_image_processor_config(), indent=2)
    (options.out / "preprocessor_config.json").write_text(config + "\n", encoding="utf-8")
    write_notes(options.out, notes)
    print(f"written: {options.out}")
    options.state.unlink(missing_ok=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m bepa_torchrl.tiny_local", description=__doc__)
    main.add_argument("--recordings", type=Path, default=Path("build/recordings"), help="folder of `bepa record`")
    main.add_argument("--suite", default="varied", help="suite of the recordings (default: varied)")
    main.add_argument("--seeds", type=int, default=8, help="recorded seeds per task (default: 8)")
    main.add_argument("--out", type=Path, default=Path("build/tiny-local"), help="checkpoint folder")
    main.add_argument("--state", type=Path, default=Path("build/tiny-local.pt"), help="state of an unfinished run")
    main.add_argument("--steps", type=int, default=Recipe().steps, help="optimiser steps")
    main.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    main.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 if the recordings are missing or damaged."""
    options = parser().parse_args(arguments)
    return guarded(lambda: train(options), "tiny_local")


if __name__ == "__main__":
    sys.exit(main())
