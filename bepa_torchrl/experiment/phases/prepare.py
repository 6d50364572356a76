"""The preparation of a run, shown on the console: loaded if it exists, otherwise made."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console

from bepa_torchrl.analysis.before_after import BASE
from bepa_torchrl.analysis.stage_progress import ConsoleProgress
from bepa_torchrl.analysis.status import PREPARING
from bepa_torchrl.experiment.factory import make_env
from bepa_torchrl.experiment.phases.experts import expert_traces
from bepa_torchrl.experiment.preparation import Preparation, load_preparation, prepare, save_preparation
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.start.tasks import Tasks
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.storage.ledger import Ledger


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
        with closing(make_env(config, policy, tasks.suite)) as env:
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
