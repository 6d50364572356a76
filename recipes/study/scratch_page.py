"""The base policy's recipe run from scratch with other seeds, beside what ships, from the runs' manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recipes.study.markdown import row, rule, wrapped
from recipes.tiny.gate import gate_failures

#: name of the row → its value in percent, for the base policy's figures
_ROWS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    f"{split}: {name}": lambda found, split=split, key=key: 100 * found[split][key]
    for split in ("train", "held_out")
    for key, name in (
        ("known", "known"),
        ("unknown", "unknown"),
        ("unknown_planned", "unknown with the plan"),
        ("known_planned", "known with the plan"),
    )
} | {
    "known tasks, prompted into the dialect": lambda found: 100 * found["dialect"]["prompted_known"],
    "converted traces: p < 0.2": lambda found: 100 * found["divergence"]["converted"]["tail"],
}
_COUNTS = {"self_rolled": "training tasks with a self-rolled trace", "expert_only": "expert-only tasks"}


def scratch_section(shipped: Mapping[str, Any], folder: Path) -> list[str]:
    """Markdown lines; none without a manifest in ``folder``.

    Args:
        shipped: the figures of what ships.
        folder: the folder of ``seed-N.json``, the manifests of checkpoints by ``python -m recipes.tiny --seed N``.
    """
    paths = sorted(folder.glob("seed-*.json"))
    if not paths:
        return []
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    runs = [manifest["measured"] for manifest in manifests]
    names = [f"from scratch, seed {manifest['recipe']['seed']}" for manifest in manifests]
    lines = [row("", "what ships", *names), rule(2 + len(runs))]
    lines += [
        row(f"{name}, %", *(f"{value(found):.1f}" for found in (shipped, *runs))) for name, value in _ROWS.items()
    ]
    lines += [row(f"{name}, JS", *(f"{found['divergence'][name]['js']:.4f}" for found in (shipped, *runs)))
              for name in ("raw", "converted", "level1", "level2")]  # fmt: skip
    lines += [row(name, *(f"{found[key]}" for found in (shipped, *runs))) for key, name in _COUNTS.items()]
    hours = (f"{_cpu_hours(manifest):.1f}" for manifest in manifests)
    return [
        "### The recipe from scratch",
        "",
        *wrapped(
            f"""`make tiny` with other seeds of the weights and of the evaluation ({" and ".join(hours)} CPU hours, the
            same data; {" and ".join(f"`{m['command']}`" for m in manifests)}), 8 episodes per task. The manifests are
            in `docs/results/terse/base/`. All methods below start from what ships. Its training was interrupted
            several times, and its recipe changed ([log](history/log.md)); one run does not tell whether its figures are
            due to that or to chance."""
        ),
        "",
        *lines,
        "",
        *(f"- {name}: {_verdict(found)}" for name, found in zip(names, runs, strict=True)),
        "",
    ]


def _cpu_hours(manifest: Mapping[str, Any]) -> float:
    """Of all processes; the manifest has the seconds of the first one."""
    return float(sum(manifest["cpu_seconds"].values()) * manifest.get("processes", 1) / 3600)


def _verdict(found: Mapping[str, Any]) -> str:
    failures = gate_failures(found)
    return "passes the gate" if not failures else f"**fails the gate**: {'; '.join(failures)}"
