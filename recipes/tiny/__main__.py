"""``python -m recipes.tiny``: trains and evaluates the tiny policy and writes its checkpoint; resumable."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from bepa_torchrl.checkpoints import SHIPPED
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from recipes.tiny.checkpoint import write_checkpoint, write_notes
from recipes.tiny.cloning import block
from recipes.tiny.evaluate import measure
from recipes.tiny.gate import gate_failures
from recipes.tiny.grounding import label_words
from recipes.tiny.pretrain import Pretraining, Recipe, finished_model, new_model, run, short
from recipes.tiny.turns import texts

FOLDER = SHIPPED["tiny"][0]  #: of the policy that ships with the package
_BLOCKS = 8  #: blocks of cloning data that the tokenizer is trained on


def project_tokenizer() -> PreTrainedTokenizerFast:
    """Trains the tokenizer on the desktop's words and on prompts and responses of the cloning data."""
    corpus = [f"{before}{word}" for word in label_words() for before in " '"]
    template = train_tokenizer(corpus)
    for number in range(_BLOCKS):
        for screen in block(number):
            for turn in screen.turns:
                corpus += texts(turn, template)
    return train_tokenizer(corpus)


def measure_folder(folder: Path, episodes: int, seed: int) -> dict[str, Any]:
    """The figures of :func:`measure` for a checkpoint, how they were measured, and the CPU seconds it took."""
    start = time.process_time()
    policy = load_policy(folder, preset="compact", max_new_tokens=48)
    found = measure(policy, episodes=episodes, seed=seed)
    how = {"episodes_per_task": episodes, "seed": seed, "temperature": 1.0}
    return how | found | {"cpu_seconds": round(time.process_time() - start, 1)}


def train(out: Path, state: Path, share: float, episodes: int, seed: int) -> None:
    """Trains, writes and evaluates the checkpoint; resumes an unfinished run."""
    tokenizer = project_tokenizer()
    recipe = short(Recipe(seed=seed), share)
    training = Pretraining(new_model(tokenizer, recipe), tokenizer, recipe)
    run(training, state, log=lambda line: print(line, flush=True))
    notes: dict[str, Any] = {
        "command": f"python -m recipes.tiny --share {share} --seed {seed}",
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "cpu_seconds": {phase: round(seconds, 1) for phase, seconds in training.seconds.items()},
    }
    write_checkpoint(out, finished_model(training), tokenizer, notes)
    if episodes:
        notes["measured"] = measure_folder(out, episodes, seed)
        write_notes(out, notes)
        show(notes["measured"])
    print(f"written: {out}")
    state.unlink(missing_ok=True)


def show(measured: Mapping[str, Any]) -> None:
    """Prints the figures, and which conditions of the gate they fail."""
    print(json.dumps(measured, indent=2))
    failures = gate_failures(measured)
    print("\n".join(failures) if failures else "passes the gate")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m recipes.tiny", description=__doc__)
    main.add_argument("--out", type=Path, default=FOLDER, help="checkpoint folder (default: the package's own)")
    main.add_argument(
        "--state", type=Path, default=Path("build/tiny.pt"), help="state of an unfinished run, resumed if it exists"
    )
    main.add_argument("--share", type=float, default=1.0, help="share of the recipe's steps")
    commands = main.add_subparsers(dest="command", title="instead of training")
    other = commands.add_parser("measure", help="evaluate a checkpoint and compare it with the gate")
    other.add_argument("--folder", type=Path, default=FOLDER, help="checkpoint folder (default: the package's own)")
    other.add_argument("--json", action="store_true", help="print one JSON object only")
    for command in (main, other):
        command.add_argument("--episodes", type=int, default=8, help="evaluation episodes per task")
        command.add_argument("--seed", type=int, default=0, help="seed of the weights and of the evaluation")
    return main


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    if options.command is None:
        train(options.out, options.state, options.share, options.episodes, options.seed)
        return 0
    measured = measure_folder(options.folder, options.episodes, options.seed)
    if options.json:
        print(json.dumps(measured))
    else:
        show(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
