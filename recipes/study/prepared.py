"""What a folder of preparation and runs was made for: it is used for no other base policy and no other preparation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.settings import Settings
from osworld_gym.atomic import write_text
from recipes.study.bases import base_hash
from recipes.study.records import ResultError, kept_settings

NOTE = "prepared_for.json"  #: beside ``prepared/``
#: settings that a preparation depends on: these, and all of these sections
_SETTINGS = frozenset({
    "seed", "cache.seed", "collect.temperature", "collect.retries", "eval.seed", "eval.greedy", "eval.final_episodes",
})  # fmt: skip
_SECTIONS = ("env.", "policy.", "expert.")
#: but for these: the weights count, not where they are, and later self-rollouts are a method's
_FREE = frozenset({"policy.checkpoint", "expert.reroll_every", "expert.reroll_stale"})


def preparation_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a run's preparation depends on, by dotted name, as JSON has them."""
    found = {
        name: value
        for name, value in kept_settings(settings).items()
        if (name in _SETTINGS or name.startswith(_SECTIONS)) and name not in _FREE
    }
    return dict(json.loads(json.dumps(found)))


def claim_folder(root: Path, settings: Settings) -> None:
    """Notes for what the folder's preparation is, before it is begun; later, checks that it is for the same.

    A folder of an earlier version has no note: it gets that of the first run that goes on in it.

    Args:
        root: folder of a preparation and of the runs that share it.
        settings: of one of these runs.

    Raises:
        ResultError: the folder is of another base policy, or of other settings of the preparation.
    """
    weights, wanted = base_hash(settings.policy.checkpoint), preparation_settings(settings)
    path = root / NOTE
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"base": weights, "settings": wanted}, indent=1) + "\n")
        return
    made = json.loads(path.read_text(encoding="utf-8"))
    where = f"{root.parent.name}/{root.name}"
    if made["base"] != weights:
        raise ResultError(
            f"{where} was prepared with another base policy (weights {made['base']}) than this one ({weights}), "
            "and its runs started from that; remove the folder, or give another --work"
        )
    new = wanted.keys() - made["settings"].keys()  # settings of a later version count as their defaults
    before = (preparation_settings(load_config()) if new else {}) | made["settings"]
    if other := sorted(name for name in before.keys() | wanted.keys() if before.get(name) != wanted.get(name)):
        raise ResultError(
            f"{where} was prepared with other settings ({', '.join(other)}); remove the folder, or give another --work"
        )


def prepared_base(root: Path, settings: Settings) -> str:
    """Hash of the weights that the folder's runs started from; without a note, of those that the settings name."""
    path = root / NOTE
    if not path.exists():
        return base_hash(settings.policy.checkpoint)
    return str(json.loads(path.read_text(encoding="utf-8"))["base"])
