"""``bepa experts split``: Pass@k of the base policy, and the pool, training and held-out tasks that follow from it."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.commands.arguments import check_new
from bepa_torchrl.commands.experts.arguments import add_job, beside, noting, sources_and_settings

if TYPE_CHECKING:
    from bepa_torchrl.experiment.settings import Settings
    from bepa_torchrl.experiment.tasks import Tasks

_FRACTION, _EXTRA, _METHOD = 0.8, 8, "bepa"  #: defaults of the options, whose parser has None to tell what was given


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    text = "Pass@k of the base policy (expert.pass_k), and the pool, training and held-out tasks that follow from it"
    parser = actions.add_parser("split", help=text, description=f"Writes {text}. Continues where it was interrupted.")
    add_job(parser, "folder of manifest.json and a list per set; it must not exist", sources="*")
    parser.add_argument(
        "--split", default="all", help="split of env.suite with the tasks of the experiment (default: all)"
    )
    parser.add_argument("--fraction", type=float, help=f"share of the pool that is trained on (default: {_FRACTION})")
    parser.add_argument("--extra", type=int, help=f"number of other tasks that are trained on (default: {_EXTRA})")
    parser.add_argument(
        "--selfroll",
        type=Path,
        metavar="FOLDER",
        help="folder of bepa experts selfroll: also write the expert-only set",
    )
    parser.add_argument(
        "--pass-k", type=Path, metavar="FILE", help="pass_k.json of an earlier split: nothing is played"
    )
    parser.add_argument(
        "--run", type=Path, metavar="RUN", help="take the sets of a run instead, and D_upd from its cache"
    )
    parser.add_argument("--method", help=f"method of --run (default: {_METHOD})")
    parser.set_defaults(program=split)


def split(options: argparse.Namespace) -> int:
    """Writes the sets, and prints their sizes."""
    from bepa_torchrl.experiment.config import with_changes

    sources, settings = sources_and_settings(options)
    _check_run(options, sources)
    fraction = _FRACTION if options.fraction is None else options.fraction
    extra = _EXTRA if options.extra is None else options.extra
    check_new(options.out, "--out")
    from bepa_torchrl.experiment.tasks import make_tasks
    from bepa_torchrl.experts.splitting import make_split, read_pass_k, solved_by_experts, split_of_run, write_split
    from osworld_gym.atomic import new_folder, write_text

    settings = with_changes(settings, {"env.train_split": options.split, "env.held_out_split": None})
    tasks = make_tasks(settings)
    k, counts = settings.expert.pass_k, None
    if options.run is not None:
        division = split_of_run(options.run, options.method or _METHOD)
    else:
        make_split((), expert=(), base={}, fraction=fraction, extra=extra)  # checks them first
        expert = solved_by_experts(sources, tasks.train)
        own = _self_rolled(options.selfroll, tasks)
        if options.pass_k is not None:
            k, counts = read_pass_k(options.pass_k, tasks.train)
        else:
            with noting(options):
                counts = _pass_k(settings, tasks, beside(options.out, "unfinished"))
        division = make_split(
            tasks.train,
            expert=expert,
            base=counts,
            self_rolled=own,
            seed=settings.seed,
            fraction=fraction,
            extra=extra,
        )
    with new_folder(options.out) as part:
        write_split(part, division, tasks.train)
        if counts is not None:
            write_text(part / "pass_k.json", json.dumps({"k": k, "counts": counts}, indent=1))
    shutil.rmtree(beside(options.out, "unfinished"), ignore_errors=True)
    short = 0 if counts is None else sum(played < k for _, played in counts.values())
    if short:
        print(f"{short} tasks have less than {k} episodes: the others were lost to the desktops")
    sizes = {name: len(ids) for name, ids in division.sets.items()}
    print(", ".join(f"{name} {size}" for name, size in sizes.items()) + f": {options.out}")
    return 0


def _check_run(options: argparse.Namespace, sources: Sequence[str]) -> None:
    """Raises ValueError if an option is given that has no effect with ``--run``, or none without it."""
    if options.run is None:
        if options.method is not None:
            raise ValueError("--method is read with --run RUN only; add it, or leave --method out")
        return
    names = ("selfroll", "pass_k", "fraction", "extra")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if given := [*(["SOURCE"] if sources else []), *given]:
        raise ValueError(f"--run takes the sets of a run; leave {', '.join(given)} out")


def _self_rolled(folder: Path | None, tasks: Tasks) -> list[str]:
    """The tasks of D_self. Raises TraceError if the folder is no D_self of these tasks."""
    if folder is None:
        return []
    from bepa_torchrl.experts.seed import read_seed
    from bepa_torchrl.experts.trace import TraceError

    seed = read_seed(folder, option="--selfroll")
    if seed.kind != "self_rolled":
        raise TraceError(f"{seed.where}: expected a folder of `bepa experts selfroll`, got one of `convert`")
    seed.check_tasks(tasks.suite, tasks.train, (), seed.action_text)
    return list(seed.tasks)


def _pass_k(settings: Settings, tasks: Tasks, kept: Path) -> dict[str, tuple[int, int]]:
    """The base policy's successes and valid episodes per task; finished episodes are kept in a folder."""
    from bepa_torchrl.experiment.checks import COMMAND
    from bepa_torchrl.experiment.checks.tasks import tasks_of_provider
    from bepa_torchrl.experiment.config import check

    check(settings, (*COMMAND, partial(tasks_of_provider, tasks=tasks)))
    from rich.console import Console

    from bepa_torchrl.experiment.config import settings_to_dict
    from bepa_torchrl.experiment.factory import make_env, make_policy, rollout_policy
    from bepa_torchrl.experiment.preparation import pass_k
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
    from bepa_torchrl.rollout.stages import Stages
    from bepa_torchrl.storage.ledger import Ledger
    from bepa_torchrl.storage.lock import locked

    policy = make_policy(settings, seed=settings.seed)
    kept.mkdir(parents=True, exist_ok=True)
    known = settings_to_dict(settings)
    with locked(kept), ConsoleProgress(Console(stderr=True)) as progress:
        stages = Stages(Ledger(kept), progress, context=[known["policy"], known["env"]])
        with (
            rollout_policy(settings, policy) as rollout,
            closing(make_env(settings, rollout.renderer.image_scaling, tasks.suite)) as env,
        ):
            return dict(pass_k(settings, rollout, env.vector, tasks.train, stages).counts)
