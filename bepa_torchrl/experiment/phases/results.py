"""The results of a finished run: table, curves, and an episode before and after training."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from bepa_torchrl.analysis.before_after import draw_before_after
from bepa_torchrl.analysis.curves import draw_curves
from bepa_torchrl.analysis.progress import results_table
from bepa_torchrl.evaluation.success_rate import subsets
from bepa_torchrl.experiment.preparation import Preparation
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.start.tasks import Tasks
from osworld_gym.atomic import write_text
from osworld_gym.uitars.coords import ImageScaling


def write_results(
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


def show_before_after(
    folder: Path, methods: list[str], scaling: ImageScaling, action_text: str, console: Console
) -> None:
    """Draws an episode before and after training, and prints which one."""
    found = draw_before_after(folder, methods, scaling, action_text)
    if found is None:
        console.print("GIF      none: no task was played before and after training without a failure")
        return
    path, pair = found
    console.print(f"GIF      {path}: {pair}", soft_wrap=True, markup=False, highlight=False)
