"""The section on the base policy's recipe from scratch, from manifests alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from bepa_torchrl.checkpoints import tiny_checkpoint
from recipes.study.scratch_page import scratch_section
from recipes.tiny.checkpoint import read_manifest


def test_runs_stand_beside_what_ships_with_their_verdict(tmp_path: Path) -> None:
    shipped = read_manifest(tiny_checkpoint())
    measured = shipped["measured"]
    assert scratch_section(measured, tmp_path) == []
    good, bad = copy.deepcopy(shipped), copy.deepcopy(shipped)
    good["recipe"]["seed"], bad["recipe"]["seed"] = 1, 2
    good["cpu_seconds"] = {"align": 1800.0, "finish": 5400.0}
    bad["cpu_seconds"], bad["processes"] = {"align": 5400.0}, 2
    bad["measured"]["held_out"]["known"] = 0.85
    for manifest in (good, bad):
        (tmp_path / f"seed-{manifest['recipe']['seed']}.json").write_text(json.dumps(manifest))
    lines = scratch_section(measured, tmp_path)
    assert "| | what ships | from scratch, seed 1 | from scratch, seed 2 |" in [
        line.replace("  ", " ") for line in lines
    ]
    known = 100 * measured["held_out"]["known"]
    assert f"| held_out: known, % | {known:.1f} | {known:.1f} | 85.0 |" in lines
    assert f"| raw, JS | {' | '.join([format(measured['divergence']['raw']['js'], '.4f')] * 3)} |" in lines
    assert f"| expert-only tasks | {' | '.join([str(measured['expert_only'])] * 3)} |" in lines
    assert "- from scratch, seed 1: passes the gate" in lines
    assert "- from scratch, seed 2: **fails the gate**: held_out: known: expected 0.9 to 1, measured 0.85" in lines
    assert "(2.0 and 3.0 CPU hours" in " ".join(lines)
