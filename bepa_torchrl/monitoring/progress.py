"""Shows a run's progress during training, from the methods' ``iterations.jsonl``.

On a terminal a table and a progress bar are redrawn; otherwise (log file, pipe) one line per iteration is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bepa_torchrl.monitoring.curves import WINDOW, series
from bepa_torchrl.monitoring.status import desktop_failures, utilisation
from bepa_torchrl.storage.json_lines import read_lines

_COLUMNS = (
    "method", "iteration", "rollouts", "train", "held-out", "expert-only", "cache", "injected", "updates", "desktops",
    "failures", "s",
)  # fmt: skip
_RECENT = 5  #: iterations over which the use of desktops is averaged
_MAIN_SETS = ("train", "held_out", "expert_only")


def percent(value: float | None) -> str:
    """A rate in [0, 1] as text."""
    return "–" if value is None else f"{100 * value:.1f} %"


def last(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The newest value of a metric, or None."""
    values = series(lines, key)[1]
    return values[-1] if values else None


def failures_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Failed attempts of desktops by reason, ``died 2, hung 1``; empty without any."""
    return ", ".join(f"{reason} {count:.0f}" for reason, count in desktop_failures(lines).items())


def row(name: str, lines: Sequence[Mapping[str, Any]], iterations: int) -> list[str]:
    """A method's row of the table."""
    if not lines:
        return [name, "starting", *[""] * (len(_COLUMNS) - 2)]
    rollouts = series(lines, "collect/success", WINDOW)[1]
    injected = sum(series(lines, "cache/injected")[1])
    cache = last(lines, "cache/tasks")
    newest = [line for line in lines if line["phase"] != "eval"][-1]
    state = f"{newest['iteration']}/{iterations}" if newest["phase"] == "rl" else str(newest["phase"])
    return [
        name,
        state,
        percent(rollouts[-1] if rollouts else None),
        *(percent(last(lines, f"eval/{split}")) for split in ("train", "held_out", "expert_only")),
        "–" if cache is None else f"{cache:.0f}",
        f"{injected:.0f}",
        f"{newest['total/optimizer_steps']:.0f}",
        percent(utilisation(lines[-_RECENT:])),
        failures_text(lines) or "0",
        f"{newest['total/seconds']:.0f}",
    ]


def iteration_line(name: str, line: Mapping[str, Any], iterations: int) -> str:
    """One iteration of a method, for output that is not a terminal.

    ``grpo 3/20: rollouts 40.0 %, held-out 25.0 %, cache 4, injected 1, updates 6, desktops 61.0 % busy, failures died
    1, 31 s``; rates and failures are of this iteration.
    """
    heads = {"rl": f"{line['iteration']}/{iterations}", "eval": f"evaluation of iteration {line['iteration']}"}
    head = f"{name} {heads.get(line['phase'], line['phase'])}"
    rates = {"rollouts": "collect/success", "train": "eval/train", "held-out": "eval/held_out"}
    parts = [f"{label} {percent(line[key])}" for label, key in rates.items() if key in line]
    counts = {"cache": "cache/tasks", "injected": "cache/injected"}
    parts += [f"{label} {line[key]:.0f}" for label, key in counts.items() if key in line]
    parts.append(f"updates {line['total/optimizer_steps']:.0f}")
    if (share := utilisation([line])) is not None:
        parts.append(f"desktops {percent(share)} busy")
    if failures := failures_text([line]):
        parts.append(f"failures {failures}")
    parts.append(f"{line['total/seconds']:.0f} s")
    return f"{head}: {', '.join(parts)}"


class Progression:
    """Displays the progress of a run's methods.

    Args:
        folder: folder of the run, with a folder per method.
        iterations: method → its total iterations.
    """

    def __init__(self, folder: Path, iterations: Mapping[str, int], console: Console) -> None:
        self.folder, self.iterations, self.console = folder, dict(iterations), console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._bar = self._progress.add_task("iterations", total=max(1, sum(self.iterations.values())))
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        #: per method, the number of lines already printed, or written before a resume
        self._printed = {name: len(self._lines(name)) for name in self.iterations}

    def __enter__(self) -> Progression:
        if self.console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console.is_terminal:
            self._live.__exit__(*error)

    def update(self) -> None:
        """Reads the files and updates the display."""
        lines = {name: self._lines(name) for name in self.iterations}
        if self.console.is_terminal:
            done = sum(int(method_lines[-1]["iteration"]) for method_lines in lines.values() if method_lines)
            self._progress.update(self._bar, completed=done)
            self._live.update(Group(self.table(lines), self._progress))
            return
        for name, method_lines in lines.items():
            for line in method_lines[self._printed[name] :]:
                text = iteration_line(name, line, self.iterations[name])
                self.console.print(text, soft_wrap=True, markup=False, highlight=False)
            self._printed[name] = len(method_lines)

    def table(self, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
        """The table of all methods."""
        table = Table(*_COLUMNS, title=f"{self.folder}")
        for name, method_lines in lines.items():
            table.add_row(*row(name, method_lines, self.iterations[name]))
        return table

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / "iterations.jsonl"
        return read_lines(path) if path.exists() else []


def results_table(results: Mapping[str, Mapping[str, Any]], base: Mapping[str, Any]) -> Table:
    """Table of final success rates per method on the main task sets, sampled at temperature 1 and greedy."""
    table = Table("method", "train", "held-out", "expert-only", "updates", "episodes", "s")
    table.title = "final success: sampled (greedy)"
    rows = {"base": {"success": base, "totals": None}, **results}
    for name, result in rows.items():
        sampled, greedy = (result["success"].get(mode, {}) for mode in ("sampled", "greedy"))
        cells = [f"{percent(sampled.get(part))} ({percent(greedy.get(part))})" for part in _MAIN_SETS]
        totals = result["totals"]
        names = ("optimizer_steps", "episodes", "seconds")
        counts = [""] * len(names) if totals is None else [f"{totals[key]:.0f}" for key in names]
        table.add_row(name, *cells, *counts)
    return table
