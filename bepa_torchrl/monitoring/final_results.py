"""Whether final results are those of a method's whole training: after a resume with more iterations they are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.methods import METHODS


def planned_iterations(config: Path) -> int | None:
    """Iterations of the method whose settings a run has written, read without a YAML parser, which is an extra's.

    A method that is not known here, one of a module of the user's own, is taken for one that collects rollouts.

    Returns:
        None if the file is missing or does not say it.
    """
    if not config.is_file():
        return None
    text = config.read_text(encoding="utf-8", errors="replace")
    algo = re.search(r"^algo:\n(?:  .*\n)*?  name: (\S+)$", text, re.MULTILINE)
    iterations = re.search(r"^train:\n(?:  .*\n)*?  iterations: (\d{1,18})$", text, re.MULTILINE)
    if algo is None or iterations is None:
        return None
    method = METHODS.get(algo[1])
    return int(iterations[1]) if method is None or method.rl else 0


def are_final(results: Mapping[str, Any], config: Path) -> bool:
    """Whether the contents of ``results.json`` are of as many iterations as the settings have.

    Those of a method that collects no rollouts are, and those of a folder that does not say the number.
    """
    settings = results.get("settings")
    done = settings.get("iterations") if isinstance(settings, dict) else None
    asked = planned_iterations(config)
    return done in (None, 0, asked) or asked is None
