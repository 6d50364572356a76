"""``python -m recipes.sim_to_real``: trains on a recorded twin of real desktops, tests on the real ones; resumable.

1. Records the first training tasks of the suite ``varied`` on real desktops: oracles and the base policy.
2. Trains on the recordings, with the best ``--trial`` if there are several, and likewise on the real desktops.
3. Plays the policy that was trained on the recordings on the real desktops, from the same first screens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bepa_torchrl.evaluation.success_rate import Evaluation
from bepa_torchrl.experiment.config import with_changes
from bepa_torchrl.experiment.factory import make_env, make_policy
from bepa_torchrl.experiment.preparation import final_evaluation
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import Tasks, make_tasks
from bepa_torchrl.failures import guarded
from bepa_torchrl.methods import METHODS
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.storage.ledger import Ledger
from osworld_gym.atomic import write_text
from recipes.sim_to_real.transfer import report, transfer
from recipes.sim_to_real.twin import Effort, build_twin, claim_trainings
from recipes.study.bases import base_hash
from recipes.study.records import Result, commit, kept_settings, machine, read_result
from recipes.study.runner import Run, run_missing
from recipes.study.variants import Variant

#: settings of both trainings
COMMON = (
    "experiment=local",
    "env.held_out_split=null",
    "eval.every=0",
    "eval.greedy=false",
    "eval.final_episodes=12",
    "expert.pass_k=1",
    "record.every=0",
    "record.outcomes=false",
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m recipes.sim_to_real", description=__doc__.split("\n")[0])
    found.add_argument("--algo", choices=list(METHODS), default="bepa", help="the method of both trainings")
    found.add_argument("--tasks", type=int, default=24, help="number of training tasks, the known ones first")
    found.add_argument("--record-seeds", type=int, default=4, help="seeds of the desktop that are recorded per task")
    found.add_argument("--rollouts", type=int, default=8, help="the base policy's episodes per recorded seed")
    found.add_argument("--iterations", type=int, default=24, help="of each training")
    found.add_argument("--seed", type=int, default=0, help="of recording and training")
    found.add_argument("--work", type=Path, default=Path("runs/sim-to-real"), help="twin, checkpoints, logs, result")
    found.add_argument(
        "--trial",
        nargs="+",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="trials",
        help="settings to try on the recordings; of several, those with the highest success there are used",
    )
    found.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="settings", help="further settings")
    return found


def variants(options: argparse.Namespace, chosen: Sequence[str] = (), trial: str = "twin") -> dict[str, Variant]:
    """``real`` and ``twin``: the same training on the real desktops and on the recordings.

    Args:
        options: of the command line.
        chosen: the settings of a trial.
        trial: the name of the variant on the recordings.
    """
    twin = (options.work / "twin").resolve()
    length = (f"train.iterations={options.iterations}", f"env.train_limit={options.tasks}")
    common = (*COMMON, *length, *options.settings, *chosen)
    recorded = (
        "env.provider=recorded",
        f"env.options.folder={twin}",
        f"env.suite={twin / 'suite'}",
        "env.train_split=test",
        "env.warm_pool=0",
        f"expert.logs=[{twin / 'experts'}]",
    )
    return {
        "real": Variant("real", options.algo, common=common),
        "twin": Variant(trial, options.algo, common=(*common, *recorded)),
    }


def trials(options: argparse.Namespace) -> list[dict[str, Variant]]:
    """The variants of each trial; without trials those of the settings as they are."""
    tried = [variants(options, settings, f"trial-{number}") for number, settings in enumerate(options.trials, 1)]
    return tried or [variants(options)]


def success_of(result: Result) -> float:
    """Sampled success after a training on its own tasks, in [0, 1]."""
    return Evaluation.from_json(result.counts["sampled"]).success() or 0.0


def best(results: Sequence[Result]) -> int:
    """Which of them has the highest :func:`success_of`; of equal ones the first."""
    success = [success_of(result) for result in results]
    return success.index(max(success))


def trainings(run: Run, work: Path) -> Path:
    """The folder of a run's preparation and training; real desktops and twin have preparations of their own."""
    return work / "trainings" / ("real" if run.variant.name == "real" else "twin")


def trained(run: Run, work: Path) -> Result:
    """The result of a run, which is made if it is missing.

    Raises:
        RuntimeError: it failed; its last line was printed.
    """
    out = work / "results"
    if run_missing([run], trainings(run, work), out, processes=1, log=say):
        raise RuntimeError(f"{run.name} failed; call the command again to go on")
    return read_result(out / f"{run.name}.json")


def on_real(settings: Settings, tasks: Tasks, policy_folder: Path, ledger: Path) -> Evaluation:
    """Success on the real desktops of a policy that was trained elsewhere; finished episodes are kept in ``ledger``."""
    policy = make_policy(with_changes(settings, {"policy.checkpoint": str(policy_folder)}), seed=settings.seed)
    stages = Stages(Ledger(ledger), context=base_hash(str(policy_folder)))
    with closing(make_env(settings, policy.renderer.image_scaling, tasks.suite)) as env:
        return final_evaluation(settings, policy, env.vector, tasks.train, stages=stages)["sampled"]


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """All steps; returns the result, which is also in ``result.json`` of the work folder."""
    tried = [{name: Run(each, options.seed) for name, each in both.items()} for both in trials(options)]
    settings = tried[0]["real"].settings()
    torch.set_num_threads(settings.threads)
    tasks, work = make_tasks(settings), options.work
    effort = Effort(options.record_seeds, options.rollouts, options.seed)
    recorded = build_twin(work / "twin", settings, tasks.train, make_policy(settings, seed=0), effort, say)
    claim_trainings(work / "twin", work, tasks.train)
    on_twin = [trained(runs["twin"], work) for runs in tried]
    chosen = best(on_twin)
    runs = tried[chosen]
    settings = runs["real"].settings()
    results = {"twin": on_twin[chosen], "real": trained(runs["real"], work)}
    say("the policy of the twin on the real desktops")
    folder = trainings(runs["twin"], work) / runs["twin"].group() / runs["twin"].variant.name / "policy"
    after_twin = on_real(settings, tasks, folder, work / "evaluating")
    real = {**_before_and_after(results["real"], "real"), "after_twin": after_twin}
    twin = _before_and_after(results["twin"], "twin")
    found = {
        **transfer(real, twin, [task.id for task in tasks.train]),
        "counts": {
            "real": {name: each.to_json() for name, each in real.items()},
            "twin": {name: each.to_json() for name, each in twin.items()},
        },
        "trials": [
            {"settings": given, "success": success_of(result)}
            for given, result in zip(options.trials, on_twin, strict=False)
        ],
        "recorded": recorded,
        "effort": asdict(effort),
        "settings": kept_settings(settings),
        "commit": commit(),
        "machine": machine(),
    }
    write_text(work / "result.json", json.dumps(found, indent=1) + "\n")
    return found


def _before_and_after(result: Result, where: str) -> dict[str, Evaluation]:
    """The evaluations of a training on the desktops that it was trained on."""
    pairs: Mapping[str, Any] = {"base": result.base_counts, f"after_{where}": result.counts}
    return {name: Evaluation.from_json(found["sampled"]) for name, found in pairs.items()}


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a training failed, 2 for bad input, 3 for infrastructure."""
    options = parser().parse_args(arguments)

    def job() -> int:
        try:
            found = run_all(options)
        except RuntimeError as error:
            print(f"sim_to_real: {error}", file=sys.stderr)
            return 1
        say("\n".join(report(found, found["recorded"])))
        say(str(options.work / "result.json"))
        return 0

    return guarded(job, "sim_to_real")


if __name__ == "__main__":
    sys.exit(main())
