"""The phases of a checked run: the preparation in this process, then a process per method, then the results."""

from __future__ import annotations

import gc
import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from bepa_torchrl.evaluation.success_rate import subsets
from bepa_torchrl.experiment.checks import DEVICES
from bepa_torchrl.experiment.config import check, settings_to_yaml, with_changes
from bepa_torchrl.experiment.expert_traces import expert_traces
from bepa_torchrl.experiment.factory import check_engine, make_env, make_policy
from bepa_torchrl.experiment.launcher import CheckedRun
from bepa_torchrl.experiment.method_handle import MethodChild
from bepa_torchrl.experiment.method_process import finished
from bepa_torchrl.experiment.preparation import Preparation, load_preparation, prepare, save_preparation
from bepa_torchrl.experiment.record_size import record_estimate
from bepa_torchrl.experiment.restarts import Restarts
from bepa_torchrl.experiment.run_folder import continue_command, locked_new_run, write_settings
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import is_rank
from bepa_torchrl.experiment.tasks import Tasks, run_seed
from bepa_torchrl.failures import BAD_INPUT, INFRASTRUCTURE, INTERRUPTED, exit_code
from bepa_torchrl.methods import method_named
from bepa_torchrl.monitoring.before_after import BASE, draw_before_after
from bepa_torchrl.monitoring.curves import draw_curves
from bepa_torchrl.monitoring.overview import draw_overview, name_of
from bepa_torchrl.monitoring.progress import Progression, results_table
from bepa_torchrl.monitoring.prometheus import StatusFile
from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
from bepa_torchrl.monitoring.status import PREPARING, report, run_status
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.storage.ledger import Ledger
from osworld_gym.atomic import write_text
from osworld_gym.uitars.coords import ImageScaling

if TYPE_CHECKING:
    from bepa_torchrl.scale.store.mirror import RunUploader

_POLL = 0.5  #: seconds between two updates of the display
_INTERRUPT_SECONDS = 30.0  #: after Ctrl-C, for the methods to end their desktops and workers


def run_phases(checked: CheckedRun, console: Console, stack: ExitStack) -> int:
    """Runs all phases; returns the exit code: 0, or that of the first method process that failed.

    Args:
        checked: the run.
        console: for progress and results.
        stack: holds the lock of the run's folder until it is closed.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    folder, config, configs = checked.folder, checked.config, checked.configs
    check(config, DEVICES)
    policy = make_policy(config, seed=config.seed)
    check_engine(config, policy)
    if not (folder / "prepared").exists() and (seed := run_seed(config)) is not None:
        seed.check_policy(policy, policy.renderer.image_scaling)
    if config.resume:
        write_settings(folder, config, configs)
    else:
        stack.enter_context(locked_new_run(folder))
        _begin(folder, config, configs, checked.overrides, policy.renderer.image_scaling)
    command = continue_command(config, folder)
    limit = 0 if is_rank() else config.restarts  # ranks that have been placed are placed again from outside
    restarts = Restarts(limit, partial(console.print, soft_wrap=True, markup=False, highlight=False))
    with _noting(command, folder), _uploading(config, folder, console) as uploader:
        prepared = restarts.run(partial(prepared_run, config, folder, policy, checked.tasks, console))
        console.print(record_estimate(config, folder, len(checked.tasks.train)), soft_wrap=True)
        scaling = policy.renderer.image_scaling
        del policy  # the methods' processes have their own: the device must not hold these weights, too
        _free_memory()
        code = _trained(restarts, folder, configs, config, console, uploader, command)
        if code == 0:
            write_results(folder, list(configs), config, prepared, checked.tasks, console)
            if config.record.outcomes and config.record.images and config.eval.final_episodes:
                show_before_after(folder, list(configs), scaling, config.policy.action_text, console)
    return code


def _trained(
    restarts: Restarts,
    folder: Path,
    configs: dict[str, Settings],
    config: Settings,
    console: Console,
    uploader: RunUploader | None,
    command: str,
) -> int:
    """:func:`train_methods`, which after a failure of the infrastructure goes on from the newest checkpoints."""
    resumed = {name: with_changes(own, {"resume": True}) for name, own in configs.items()}

    def train() -> int:
        if restarts.used:
            write_settings(folder, with_changes(config, {"resume": True}), resumed)
        return train_methods(folder, configs, config, console, uploader, command)

    return restarts.run(train, failed=lambda code: code == INFRASTRUCTURE)


@contextmanager
def _noting(command: str, folder: Path) -> Iterator[None]:
    """Adds what to do next to an exception that ends the run. After bad input, a resume would fail in the same way."""
    try:
        yield
    except BaseException as error:
        again = f"start a run with other settings by another name=, since {folder} exists"
        error.add_note(again if exit_code(error) == BAD_INPUT else f"continue with: {command}")
        raise


def _uploading(config: Settings, folder: Path, console: Console) -> AbstractContextManager[RunUploader | None]:
    """Uploads the run's folder during the block, with ``storage=``."""
    if config.storage is None:
        return nullcontext()
    from bepa_torchrl.experiment.remote_copy import uploading

    return uploading(config, folder, console)


def _begin(
    folder: Path, config: Settings, configs: dict[str, Settings], overrides: Sequence[str], scaling: ImageScaling
) -> None:
    """Writes the settings into the run's new folder; ``config.yaml`` is the last, by which the run has begun."""
    for name, own in configs.items():
        text = own.policy.action_text
        RunRecord(folder / name).begin(settings_to_yaml(own), action_text=text, scaling=scaling)
    write_text(folder / "overrides.json", json.dumps(list(overrides), indent=1))
    write_text(folder / "config.yaml", settings_to_yaml(config))


def _free_memory() -> None:
    """Returns the memory of objects that are no longer used to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# --- preparation ------------------------------------------------------------------------------------------------------


def prepared_run(config: Settings, folder: Path, policy: Policy, tasks: Tasks, console: Console) -> Preparation:
    """The shared preparation; loaded if it exists. One that was interrupted goes on after its last finished unit."""
    target, ledger_folder = folder / "prepared", folder / PREPARING
    if target.exists():
        shutil.rmtree(ledger_folder, ignore_errors=True)  # the process may have been killed in between
        return load_preparation(target)
    torch.set_num_threads(config.threads)
    ledger = Ledger(ledger_folder)
    with ConsoleProgress(console) as progress:
        stages = Stages(ledger, progress)
        if len(ledger):
            progress.note(f"goes on: {len(ledger)} units of the preparation were finished before")
        logs = ", ".join(config.expert.logs)
        progress.note(f"expert: {logs}" if logs else f"the expert plays {len(tasks.train)} training tasks")
        traces = expert_traces(config, tasks.train, stages)
        with closing(make_env(config, policy.renderer.image_scaling, tasks.suite)) as env:
            kept = RunRecord(folder / BASE, images=config.record.images) if config.record.outcomes else None
            prepared = prepare(
                config, policy, env.vector, tasks, traces, note=progress.note, record=kept, stages=stages
            )
        plans = config.expert.plans
        save_preparation(prepared, traces, target, plans=None if plans is None else Path(plans).expanduser())
    ledger.remove()
    counts = ", ".join(f"{name} {count}" for name, count in prepared.manifest.counts.items())
    console.print(f"prepared in {prepared.metrics['seconds']:.0f} s: {counts}")
    return prepared


# --- training ---------------------------------------------------------------------------------------------------------


def train_methods(
    folder: Path,
    configs: dict[str, Settings],
    config: Settings,
    console: Console,
    uploader: RunUploader | None,
    command: str,
) -> int:
    """Runs one process per method, at most ``processes`` at a time, until all end or one fails.

    Args:
        folder: the run's.
        configs: the settings of each method.
        config: the settings of the run.
        console: for progress.
        uploader: the uploader of the run's folder.
        command: the command that continues the run.

    Returns:
        0, or the exit code of the failed process; its error is printed in one line and the others are ended.
    """
    waiting = [name for name, own in configs.items() if not finished(folder / name, own)]
    running: dict[str, MethodChild] = {}
    iterations = {name: own.train.iterations if method_named(name).rl else 0 for name, own in configs.items()}
    status = StatusFile(folder)
    try:
        with Progression(folder, iterations, console) as progression:
            while waiting or running:
                while waiting and len(running) < config.processes:
                    name = waiting.pop(0)
                    on_ray = config.cluster.address is not None
                    running[name] = MethodChild(folder / name, threads=config.threads, on_ray=on_ray)
                code = _poll(running, console, command)
                progression.update()
                status.update()
                if uploader is not None:
                    uploader.check()
                if code != 0:
                    return code
        return 0
    except KeyboardInterrupt:
        _interrupt(running.values())
        summary = "\n".join(report(run_status(folder) | {"running": False}))
        console.print(summary, markup=False, highlight=False, soft_wrap=True)
        raise
    finally:
        for child in running.values():
            child.stop()
        status.update(ended=True)


def _interrupt(children: Iterable[MethodChild]) -> None:
    """Asks the processes to end, and waits for them for a while."""
    for child in children:
        child.interrupt()
    end = monotonic() + _INTERRUPT_SECONDS
    for child in children:
        child.wait(max(0.0, end - monotonic()))


def _poll(running: dict[str, MethodChild], console: Console, command: str) -> int:
    """Waits briefly for the first process; prints notices and removes the processes that have ended.

    Returns:
        0, or the exit code of one that failed.

    Raises:
        KeyboardInterrupt: one was interrupted.
    """
    next(iter(running.values())).wait(_POLL)
    for name, child in list(running.items()):
        code = child.wait(0.0)
        for notice in child.notices():
            console.print(notice, soft_wrap=True, markup=False, highlight=False)
        if code is None:
            continue
        del running[name]
        if code == INTERRUPTED:  # Ctrl-C reaches this process and its children in any order
            raise KeyboardInterrupt
        if code != 0:
            again = "" if code == BAD_INPUT else f"; continue with: {command}"
            print(f"{child.failure()}{again}", file=sys.stderr)
            return INFRASTRUCTURE if code < 0 or child.lost_ray() else code
    return 0


# --- results ----------------------------------------------------------------------------------------------------------


def write_results(
    folder: Path, methods: list[str], config: Settings, prepared: Preparation, tasks: Tasks, console: Console
) -> None:
    """Writes the run's results and curves, and prints the table."""
    results = {name: json.loads((folder / name / "results.json").read_text(encoding="utf-8")) for name in methods}
    sets = subsets(tasks.train, tasks.held_out, prepared.manifest.expert_only)
    base = {mode: {n: evaluation.success(ids) for n, ids in sets.items()} for mode, evaluation in prepared.base.items()}
    whole = {
        "methods": results,
        "base": {"success": base},
        "sets": prepared.manifest.counts,
        "prepared": prepared.metrics,
        "tasks": tasks.suite.fingerprint((*tasks.train, *tasks.held_out)),
    }
    write_text(folder / "results.json", json.dumps(whole, indent=1))
    title = f"{', '.join(methods)} from the same base policy (run {folder.name}, seed {config.seed})"
    picture = draw_curves(folder, methods, title=title)
    names = ", ".join(map(name_of, methods))
    overview = draw_overview(folder, title=f"{names}: from the same base policy, seed {config.seed}")
    console.print(results_table(results, base))
    text = io.StringIO()
    Console(file=text, width=120).print(results_table(results, base))
    write_text(folder / "results.txt", text.getvalue())
    places = [f"overview {overview}", f"curves   {picture}", f"results  {folder / 'results.json'}"]
    places += [f"{name:<8} {folder / name}: record, checkpoints, policy" for name in methods]
    console.print("\n".join(places), markup=False, highlight=False, soft_wrap=True)


def show_before_after(
    folder: Path, methods: list[str], scaling: ImageScaling, action_text: str, console: Console
) -> None:
    """Draws an episode before and after training, and prints which one."""
    drawn = draw_before_after(folder, methods, scaling, action_text)
    if drawn is None:
        console.print("GIF      none: no task was played before and after training without a failure")
        return
    path, pair = drawn
    console.print(f"GIF      {path}: {pair}", soft_wrap=True, markup=False, highlight=False)
