"""Runs an experiment: prepare (expert traces, LEVEL-1), then train and evaluate one or several methods.

The preparation runs once in this process; then each method trains in a separate process, from the same policy,
preparation and seed. All files are in ``runs/<name>/``, which one process at a time may use.

    config.yaml, overrides.json   the run's settings, and the command line they are from
    prepared/                     expert traces, caches, base evaluation, manifest
    <method>/                     see :mod:`bepa_torchrl.experiment.method_process`
    status.prom                   the numbers of ``bepa status`` as Prometheus metrics
    base/                         the base policy's evaluated episodes (``record.outcomes``)
    results.json, results.txt, curves.png, before-after.gif
                                  at the end

With ``storage=URL`` the folder is also uploaded (:mod:`bepa_torchrl.experiment.remote_copy`).
"""

from __future__ import annotations

import gc
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic

import torch
from rich.console import Console

from bepa_torchrl.analysis.before_after import BASE, draw_before_after
from bepa_torchrl.analysis.curves import draw_curves
from bepa_torchrl.analysis.progress import Progression, results_table
from bepa_torchrl.analysis.prometheus import StatusFile
from bepa_torchrl.analysis.status import report, run_status
from bepa_torchrl.evaluation.success_rate import subsets
from bepa_torchrl.experiment.config import (
    ConfigError,
    load_config,
    read_settings,
    settings_to_dict,
    settings_to_yaml,
    with_changes,
)
from bepa_torchrl.experiment.environment import check_environment
from bepa_torchrl.experiment.factory import Tasks, check_settings, make_env, make_policy, make_tasks
from bepa_torchrl.experiment.method_child import MethodChild
from bepa_torchrl.experiment.method_process import finished
from bepa_torchrl.experiment.methods import algo_named
from bepa_torchrl.experiment.preparation import Preparation, expert_traces, load_preparation, prepare, save_preparation
from bepa_torchrl.experiment.remote_copy import check_new_in_store, restore_missing, uploading
from bepa_torchrl.experiment.resume import changed_settings
from bepa_torchrl.experiment.run_record import RecordError, RunRecord, read_lines
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.failures import INFRASTRUCTURE, INTERRUPTED
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.sharding.torchrun import torchrun_job
from bepa_torchrl.storage.lock import check_free, locked
from bepa_torchrl.storage.mirror import RunUploader
from osworld_gym.atomic import remove_leftovers, write_text
from osworld_gym.uitars.coords import ImageScaling

_POLL = 0.5  #: seconds between two updates of the display
_INTERRUPT_SECONDS = 30.0  #: after Ctrl-C, for the methods to end their desktops and workers


def run(overrides: Sequence[str], *, config_dir: Path | None = None, console: Console | None = None) -> int:
    """Runs the experiment; returns the exit code: 0, or that of the first method process that failed.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    console = console or Console()
    config = load_config(overrides, config_dir=config_dir)
    with ExitStack() as stack:
        if config.resume:
            folder = run_folder(config)
            restore_missing(config, folder, console)
            stack.enter_context(_locked_run(folder))
            config, configs = _resumed(folder, config, overrides)
        else:
            configs = {name: _config_of(name, config, overrides, config_dir) for name in _methods(config)}
            folder = run_folder(config)
            _check_new(folder)
            check_new_in_store(config, folder.name)
        check_environment(config, torchrun=True)
        _check_gpus(config)
        _check_torchrun(config)
        tasks = make_tasks(config)
        policy = make_policy(config, seed=config.seed)
        for own in configs.values():
            check_settings(own, algo_named(own.algo.name), tasks)
        if config.resume:
            _write_settings(folder, config, configs)
        else:
            _make_folder(folder)
            stack.enter_context(locked(folder))
            _begin(folder, config, configs, overrides)
        uploader = stack.enter_context(uploading(config, folder, console))
        prepared = _prepare(config, folder, policy, tasks, console)
        scaling = policy.image_scaling
        del policy  # the methods' processes have their own: the device must not hold these weights, too
        _free_memory()
        code = _train(folder, configs, config, console, uploader)
        if code == 0:
            _finish(folder, list(configs), config, prepared, tasks, console)
            if config.record.outcomes and config.record.images and config.eval.final_episodes:
                _show_before_after(folder, list(configs), scaling, config.policy.action_text, console)
    return code


def _check_gpus(config: Settings) -> None:
    """Raises ConfigError if there are fewer GPUs than ranks on this machine."""
    job = torchrun_job()
    ranks = config.train.ranks if job is None else job.local_ranks
    if config.train.ranks > 1 and config.policy.device != "cpu" and torch.cuda.device_count() < ranks:
        where = f"train.ranks={ranks}" if job is None else f"torchrun --nproc-per-node={ranks}"
        raise ConfigError(f"{where} requires {ranks} GPUs, this machine has {torch.cuda.device_count()}; lower it")


def _check_torchrun(config: Settings) -> None:
    """Raises ConfigError if several methods would use the processes of torchrun at the same time."""
    if torchrun_job() is not None and config.train.ranks > 1 and config.processes > 1 and len(_methods(config)) > 1:
        raise ConfigError(
            f"processes={config.processes}: torchrun's processes train one method at a time; set processes=1"
        )


def _methods(config: Settings) -> list[str]:
    return list(dict.fromkeys([config.algo.name, *config.compare]))


def run_folder(config: Settings) -> Path:
    """``runs/<name>``; the default name consists of provider, method and time.

    Raises:
        ConfigError: the name is not a single path component.
    """
    name = config.name or f"{config.env.provider}-{config.algo.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if Path(name).name != name:
        raise ConfigError(f"name={name!r} must be one folder name; the folder it is in is given by runs=")
    return Path(config.runs) / name


def _config_of(name: str, config: Settings, overrides: Sequence[str], config_dir: Path | None) -> Settings:
    """The settings of one method, which differ in ``algo`` only."""
    algo_named(name)
    if name == config.algo.name:
        return config
    own = [override for override in overrides if not override.startswith(("algo=", "algo."))]
    return load_config([*own, f"algo={name}"], config_dir=config_dir)


# --- the run's folder -----------------------------------------------------------------------------------------------


def _check_new(folder: Path) -> None:
    """Raises FolderInUseError or RecordError if the folder exists."""
    if folder.exists():
        check_free(folder)
        raise RecordError(f"{folder} exists and is not overwritten; give another name=, or go on with resume=true")


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:  # another process created it while this one loaded the model
        _check_new(folder)


def _begin(folder: Path, config: Settings, configs: dict[str, Settings], overrides: Sequence[str]) -> None:
    """Writes the settings into the run's new folder."""
    for name, own in configs.items():
        RunRecord(folder / name).begin(settings_to_yaml(own))
    write_text(folder / "overrides.json", json.dumps(list(overrides), indent=1))
    write_text(folder / "config.yaml", settings_to_yaml(config))


@contextmanager
def _locked_run(folder: Path) -> Iterator[None]:
    """Locks the folder of an existing run.

    Raises:
        RecordError: there is no run in it. FolderInUseError: another process has locked it.
    """
    if not (folder / "config.yaml").exists():
        raise RecordError(f"nothing to resume in {folder}: there is no run of that name; check name= and runs=")
    with locked(folder):
        remove_leftovers(folder)
        yield


def _resumed(folder: Path, requested: Settings, overrides: Sequence[str]) -> tuple[Settings, dict[str, Settings]]:
    """The saved settings of the run and of each method, with the changes of this command line.

    Raises:
        RecordError: a change that a resumed run cannot make.
    """
    saved = _read_settings(folder / "config.yaml")
    first = json.loads((folder / "overrides.json").read_text(encoding="utf-8"))
    changes = changed_settings(settings_to_dict(saved), settings_to_dict(requested), overrides, first)
    changes["resume"] = True
    configs = {name: with_changes(_read_settings(folder / name / "config.yaml"), changes) for name in _methods(saved)}
    for name, own in configs.items():
        check_free(folder / name)
        _check_iterations(folder / name, own)
    return with_changes(saved, changes), configs


def _check_iterations(folder: Path, config: Settings) -> None:
    """Checks that ``train.iterations`` is not below the iterations already done."""
    lines = folder / "iterations.jsonl"
    done = max((int(line["iteration"]) for line in read_lines(lines)), default=0) if lines.exists() else 0
    if config.train.iterations < done:
        raise RecordError(
            f"train.iterations={config.train.iterations} is less than the {done} iterations that {folder} has; "
            f"give {done} or more"
        )


def _write_settings(folder: Path, config: Settings, configs: dict[str, Settings]) -> None:
    for name, own in configs.items():
        write_text(folder / name / "config.yaml", settings_to_yaml(own))
    write_text(folder / "config.yaml", settings_to_yaml(config))


def _read_settings(path: Path) -> Settings:
    if not path.exists():
        raise RecordError(f"{path} is missing, so this run cannot be resumed; start one with another name=")
    return read_settings(path)


# --- the phases -----------------------------------------------------------------------------------------------------


def _free_memory() -> None:
    """Returns the memory of objects that are no longer used to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _prepare(config: Settings, folder: Path, policy: Policy, tasks: Tasks, console: Console) -> Preparation:
    """The shared preparation; loaded if it exists."""
    target = folder / "prepared"
    if target.exists():
        return load_preparation(target)
    torch.set_num_threads(config.threads)
    with console.status("prepare") as status:

        def note(line: str) -> None:
            status.update(line)
            console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

        logs = ", ".join(config.expert.logs)
        note(f"expert: {logs}" if logs else f"the expert plays {len(tasks.train)} training tasks")
        traces = expert_traces(config, tasks.train)
        with closing(make_env(config, policy, tasks.suite)) as env:
            kept = RunRecord(folder / BASE, images=config.record.images) if config.record.outcomes else None
            prepared = prepare(config, policy, env.vector, tasks, traces, note=note, record=kept)
        save_preparation(prepared, traces, target)
    counts = ", ".join(f"{name} {count}" for name, count in prepared.manifest.counts.items())
    console.print(f"prepared in {prepared.metrics['seconds']:.0f} s: {counts}")
    return prepared


def _train(
    folder: Path, configs: dict[str, Settings], config: Settings, console: Console, uploader: RunUploader | None
) -> int:
    """Runs one process per method, at most ``processes`` at a time, until all end or one fails.

    Returns:
        0, or the exit code of the failed process; its error is printed in one line and the others are ended.
    """
    waiting = [name for name, own in configs.items() if not finished(folder / name, own)]
    running: dict[str, MethodChild] = {}
    iterations = {name: own.train.iterations if algo_named(name).rl else 0 for name, own in configs.items()}
    status = StatusFile(folder)
    try:
        with Progression(folder, iterations, console) as progression:
            while waiting or running:
                while waiting and len(running) < config.processes:
                    name = waiting.pop(0)
                    on_ray = config.cluster.address is not None
                    running[name] = MethodChild(folder / name, threads=config.threads, on_ray=on_ray)
                code = _poll(running, console)
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


def _poll(running: dict[str, MethodChild], console: Console) -> int:
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
            print(child.failure(), file=sys.stderr)
            return INFRASTRUCTURE if code < 0 or child.lost_ray() else code
    return 0


def _finish(
    folder: Path, methods: list[str], config: Settings, prepared: Preparation, tasks: Tasks, console: Console
) -> None:
    """Writes the run's results and curves, and prints the table."""
    results = {name: json.loads((folder / name / "results.json").read_text(encoding="utf-8")) for name in methods}
    sets = subsets(tasks.train, tasks.held_out, prepared.manifest.expert_only)
    base = {mode: {n: found.success(ids) for n, ids in sets.items()} for mode, found in prepared.base.items()}
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
    console.print(results_table(results, base))
    text = io.StringIO()
    Console(file=text, width=120).print(results_table(results, base))
    write_text(folder / "results.txt", text.getvalue())
    places = [f"curves   {picture}", f"results  {folder / 'results.json'}"]
    places += [f"{name:<8} {folder / name}: record, checkpoints, policy" for name in methods]
    console.print("\n".join(places), markup=False, highlight=False, soft_wrap=True)


def _show_before_after(
    folder: Path, methods: list[str], scaling: ImageScaling, action_text: str, console: Console
) -> None:
    """Draws an episode before and after training, and prints which one."""
    found = draw_before_after(folder, methods, scaling, action_text)
    if found is None:
        console.print("GIF      none: no task was played before and after training without a failure")
        return
    path, pair = found
    console.print(f"GIF      {path}: {pair}", soft_wrap=True, markup=False, highlight=False)
