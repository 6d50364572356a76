"""``python -m recipes.tiny``: trains and evaluates the tiny policy and writes its checkpoint; resumable."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.checkpoints import SHIPPED
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.tasks.oracles.sim.free_prose import FREE
from recipes.tiny.checkpoint import MANIFEST, read_manifest, write_checkpoint, write_notes
from recipes.tiny.cloning import block
from recipes.tiny.evaluate import measure
from recipes.tiny.free_gate import free_gate_failures, measure_free
from recipes.tiny.gate import gate_failures
from recipes.tiny.grounding import label_words
from recipes.tiny.pretrain import AGAIN, FREE_PLANS, RECIPES, Pretraining, finished_model, new_model, run, short
from recipes.tiny.processes import ALONE, Processes, joined
from recipes.tiny.turns import texts
from recipes.tiny.wording import Styles

#: of the policies that ship
FOLDERS = {"terse": SHIPPED["tiny"][0], "free": SHIPPED["tiny_free"][0], "plans": SHIPPED["tiny_plans"][0]}
#: of one response, by the wording of the thoughts; in the expert's style up to 89, so that 48 ends some of them
MAX_NEW_TOKENS = {"terse": 48, "free": 96}
_BLOCKS = 8  #: blocks of cloning data that the tokenizer is trained on


def project_tokenizer(styles: Styles | None = None) -> PreTrainedTokenizerFast:
    """Trains the tokenizer on the desktop's words and on prompts and responses of the cloning data in these styles."""
    corpus = [f"{before}{word}" for word in label_words() for before in " '"]
    if styles is not None:
        corpus += [f" {word}" for position in FREE for word in position]
    template = train_tokenizer(corpus)
    for number in range(_BLOCKS):
        for screen in block(number, styles=styles):
            for turn in screen.turns:
                corpus += texts(turn, template)
    return train_tokenizer(corpus)


def measure_folder(folder: Path, wording: str, episodes: int, seed: int) -> dict[str, Any]:
    """The figures that a checkpoint's gate is about, how they were measured, and the CPU seconds it took."""
    start = time.process_time()
    policy = load_policy(folder, preset="compact", max_new_tokens=MAX_NEW_TOKENS[wording])
    found = (measure_free if wording == "free" else measure)(policy, episodes=episodes, seed=seed)
    how = {"episodes_per_task": episodes, "seed": seed, "temperature": 1.0}
    return how | found | {"cpu_seconds": round(time.process_time() - start, 1)}


def new_training(options: argparse.Namespace, processes: Processes = ALONE) -> Pretraining:
    """The run of the command line, at its start.

    Raises:
        ValueError: see :func:`second_training`; or an option of the second training without ``--again``.
    """
    if options.again is not None:
        return second_training(options, processes)
    if options.plans:
        raise ValueError("--plans is of the second training; give --again FOLDER as well, or leave it out")
    recipe = replace(short(RECIPES[options.wording], options.share), seed=options.seed)
    tokenizer = project_tokenizer(recipe.styles)
    return Pretraining(new_model(tokenizer, recipe), tokenizer, recipe, processes)


def second_training(options: argparse.Namespace, processes: Processes) -> Pretraining:
    """The run of ``--again``, at its start: the weights and the tokenizer of a training that has ended.

    Raises:
        ValueError: no such folder, or a training of another wording or seed, the second one, or one that has not ended.
    """
    folder, fix = options.again, "fix: give the folder that the first training wrote"
    if options.wording not in AGAIN:
        raise ValueError(f"--again: there is no second training with --wording {options.wording}, only {list(AGAIN)}")
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"--again: {folder} has no {MANIFEST}; {fix}")
    first = read_manifest(folder)
    given, total = first["recipe"], sum(first["recipe"]["steps"])
    if first["step"] < total:
        raise ValueError(f"--again: {folder} is at step {first['step']} of {total}; {fix}")
    if "start" in first:
        raise ValueError(f"--again: {folder} has had its second training; {fix}")
    if given["styles"] is None or given["seed"] != options.seed:
        found = f"{'terse' if given['styles'] is None else 'free'} --seed {given['seed']}"
        asked = f"--wording {options.wording} --seed {options.seed}"
        raise ValueError(f"--again: {folder} is of --wording {found}, expected {asked}; {fix}")
    again = FREE_PLANS if options.plans else AGAIN[options.wording]
    recipe = replace(short(again, options.share), seed=options.seed)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder)
    return Pretraining(model, PreTrainedTokenizerFast.from_pretrained(folder), recipe, processes)


def notes_of(training: Pretraining, options: argparse.Namespace) -> dict[str, Any]:
    """What the manifest says about a run."""
    command = f"python -m recipes.tiny --wording {options.wording} --share {options.share} --seed {options.seed}"
    start = {}
    if options.again is not None:
        first = read_manifest(options.again)
        command += " --again FOLDER" + (" --plans" if options.plans else "")
        start = {
            "start": {key: value for key, value in first.items() if key != "sha256"}
            | {"weights": first["sha256"]["model.safetensors"]}
        }
    return {
        "command": command,
        "recipe": asdict(training.recipe),
        "step": training.step,
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "processes": training.processes.count,
        "cpu_seconds": {phase: round(seconds, 1) for phase, seconds in training.seconds.items()},
        **start,
    }


def train(options: argparse.Namespace) -> None:
    """Trains, writes and evaluates the checkpoint; resumes an unfinished run."""
    with joined() as processes:
        training = new_training(options, processes)
        run(training, options.state, log=lambda line: print(line, flush=True))
    if processes.rank:
        return
    notes = notes_of(training, options)
    write_checkpoint(options.out, finished_model(training), training.tokenizer, notes)
    if options.episodes:
        notes["measured"] = measure_folder(options.out, options.wording, options.episodes, options.seed)
        write_notes(options.out, notes)
        show(notes["measured"], options.wording)
    print(f"written: {options.out}")
    options.state.unlink(missing_ok=True)


def snapshot(options: argparse.Namespace) -> None:
    """Writes the checkpoint of an unfinished run, which goes on undisturbed."""
    training = new_training(options)
    training.load(options.state)
    write_checkpoint(options.folder, training.model, training.tokenizer, notes_of(training, options))
    print(f"written: {options.folder}, step {training.step} of {training.total}")


def show(measured: Mapping[str, Any], wording: str) -> None:
    """Prints the figures, and which conditions of the gate they fail."""
    print(json.dumps(measured, indent=2))
    failures = free_gate_failures(measured) if wording == "free" else gate_failures(measured)
    print("\n".join(failures) if failures else "passes the gate")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m recipes.tiny", description=__doc__)
    main.add_argument("--out", type=Path, help="checkpoint folder (default: the package's own)")
    commands = main.add_subparsers(dest="command", title="instead of training")
    measuring = commands.add_parser("measure", help="evaluate a checkpoint and compare it with the gate")
    measuring.add_argument("--json", action="store_true", help="print one JSON object only")
    writing = commands.add_parser(
        "snapshot", help="write the checkpoint of an unfinished run, to evaluate its progress"
    )
    for command in (main, writing):
        command.add_argument(
            "--state", type=Path, default=Path("build/tiny.pt"), help="state of an unfinished run, resumed if it exists"
        )
        command.add_argument("--share", type=float, default=1.0, help="share of the recipe's steps")
        command.add_argument(
            "--again", type=Path, help="the second training: folder of the first one's checkpoint (--wording free)"
        )
        command.add_argument("--plans", action="store_true", help="of the second training: with more plans")
    for command in (measuring, writing):
        command.add_argument("--folder", type=Path, help="checkpoint folder (default: the package's own)")
    for command in (main, measuring):
        command.add_argument("--episodes", type=int, default=8, help="evaluation episodes per task")
    for command in (main, measuring, writing):
        command.add_argument(
            "--wording", choices=sorted(RECIPES), default="terse", help="of the policy's thoughts (default: terse)"
        )
        command.add_argument("--seed", type=int, default=0, help="seed of the weights and of the evaluation")
    return main


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    options = parser().parse_args(arguments)
    for name in ("out", "folder"):
        if getattr(options, name, 0) is None:
            setattr(options, name, FOLDERS["plans" if getattr(options, "plans", False) else options.wording])
    torch.set_num_threads(1)
    if options.command is None:
        train(options)
    elif options.command == "snapshot":
        snapshot(options)
    else:
        measured = measure_folder(options.folder, options.wording, options.episodes, options.seed)
        if options.json:
            print(json.dumps(measured))
        else:
            show(measured, options.wording)
    return 0


if __name__ == "__main__":
    sys.exit(main())
