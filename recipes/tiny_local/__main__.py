"""``python -m recipes.tiny_local``: clones the local policy from recordings and writes its checkpoint; resumable.

The recordings are made by ``bepa record`` (both styles, suite ``varied``, 640 x 360).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bepa_torchrl.checkpoints import SHIPPED
from bepa_torchrl.experts.recording import Episode, load_recordings
from bepa_torchrl.failures import guarded
from bepa_torchrl.policies.transformers.policy import load_policy
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from recipes.tiny.checkpoint import write_checkpoint, write_notes
from recipes.tiny.pretrain import sharpen
from recipes.tiny_local.cloning import Library
from recipes.tiny_local.config import SCREEN, local_image_processor_config
from recipes.tiny_local.evaluate import gate_failures, measure
from recipes.tiny_local.training import Cloning, Recipe, local_tokenizer, run

FOLDER = SHIPPED["tiny_local"][0]  #: of the policy that ships with the package
MAX_NEW_TOKENS = 48  #: of one response; the longest one of the recordings has about 30


def read_library(folder: Path, tasks: Sequence[Task], seeds: int, screen: tuple[int, int]) -> Library:
    """The recordings of ``tasks`` with seeds 0 to ``seeds - 1`` on a screen of (width, height) pixels.

    A task requires at least one recording of each style; whatever else is missing is left out.

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
    """Trains and writes the checkpoint, and measures it."""
    torch.set_num_threads(options.threads)
    library = read_library(options.recordings, load_suite(options.suite).tasks, options.seeds, SCREEN)
    recipe = replace(Recipe(seed=options.seed), steps=options.steps)
    tokenizer = local_tokenizer(library)
    training = Cloning(tokenizer, library, recipe)
    run(training, options.state, log=lambda line: print(line, flush=True))
    sharpen(training.model, recipe.sharpness)
    notes: dict[str, Any] = {
        "command": f"python -m recipes.tiny_local --steps {options.steps} --seed {options.seed}",
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "cpu_seconds": round(training.seconds, 1),
    }
    processor = local_image_processor_config()
    write_checkpoint(options.out, training.model, tokenizer, notes, image_processor=processor)
    print(f"written: {options.out}", flush=True)
    options.state.unlink(missing_ok=True)
    if options.episodes:
        notes["measured"] = measure_folder(options.out, options)
        write_notes(options.out, notes)
        show(notes["measured"])
    return 0


def measure_folder(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of :func:`measure` for a checkpoint, how they were measured, and the seconds it took."""
    start = time.monotonic()
    policy = load_policy(folder, preset="compact", max_new_tokens=MAX_NEW_TOKENS)
    make = partial(make_desktop, "local", width=SCREEN[0], height=SCREEN[1])
    found = measure(policy, load_suite(options.suite), make, episodes=options.episodes, seed=options.seed)
    how = {"episodes_per_task": options.episodes, "seed": options.seed, "temperature": 1.0}
    return how | found | {"seconds": round(time.monotonic() - start, 1)}


def measure_again(options: argparse.Namespace) -> int:
    """Measures a checkpoint; exit code 1 if it fails the gate."""
    torch.set_num_threads(options.threads)
    measured = measure_folder(options.folder, options)
    if options.json:
        print(json.dumps(measured))
    else:
        show(measured)
    return 1 if gate_failures(measured) else 0


def show(measured: Mapping[str, Any]) -> None:
    """Prints the figures, and which conditions of the gate they fail."""
    print(json.dumps(measured, indent=2))
    failures = gate_failures(measured)
    print("\n".join(failures) if failures else "passes the gate")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m recipes.tiny_local", description=__doc__)
    main.add_argument("--recordings", type=Path, default=Path("build/recordings"), help="folder of `bepa record`")
    main.add_argument("--seeds", type=int, default=40, help="reads seeds 0 to SEEDS - 1 (default: 40)")
    main.add_argument("--out", type=Path, default=FOLDER, help="checkpoint folder (default: the package's own)")
    main.add_argument("--state", type=Path, default=Path("build/tiny-local.pt"), help="state of an unfinished run")
    main.add_argument("--steps", type=int, default=Recipe().steps, help="optimiser steps")
    main.set_defaults(program=train)
    commands = main.add_subparsers(dest="command", title="instead of training")
    other = commands.add_parser("measure", help="play a checkpoint on real desktops and compare it with the gate")
    other.add_argument("--folder", type=Path, default=FOLDER, help="checkpoint folder (default: the package's own)")
    other.add_argument("--json", action="store_true", help="print one JSON object only")
    other.set_defaults(program=measure_again)
    for command in (main, other):
        command.add_argument("--suite", default="varied", help="suite of the recordings (default: varied)")
        command.add_argument("--seed", type=int, default=0, help="seed of weights, data and evaluation")
        command.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
        command.add_argument("--episodes", type=int, default=4, help="evaluation episodes per task; 0: none")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 if a measured checkpoint fails the gate; 2 if recordings are missing or damaged."""
    options = parser().parse_args(arguments)
    return guarded(lambda: int(options.program(options)), "tiny_local")


if __name__ == "__main__":
    sys.exit(main())
