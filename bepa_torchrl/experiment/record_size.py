"""How large a run's record becomes, and how it stays below a limit: the oldest episodes lose steps and screenshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment.record_lines import Kind, kind_of
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.storage.json_lines import json_line, stream_lines
from bepa_torchrl.storage.record_format import image_path
from osworld_gym.atomic import replaced_file

HEAD_BYTES = 700  #: an episode's line without steps
TOKEN_BYTES = 40  #: a token's id, its text and three log-probs, as JSON
_SAMPLE = 100  #: screenshots whose mean size is taken
KEPT = 0.8  #: of the limit, so that not every iteration has to remove something


@dataclass(frozen=True, slots=True)
class Thinned:
    """What was removed.

    Args:
        episodes: that lost their steps.
        images: screenshots that were deleted.
        bytes: the bytes of both.
        first: the first iteration of these episodes; None without one.
        last: the last one.
    """

    episodes: int
    images: int
    bytes: int
    first: int | None
    last: int | None

    def __str__(self) -> str:
        if not self.episodes:
            return ""
        return (
            f"record.limit_gb: steps of {self.episodes} episodes of iterations {self.first} to {self.last} removed "
            f"({size_text(self.bytes)}, {self.images} screenshots); raise it to keep more"
        )


def estimated_bytes(
    *, iterations: int, every: int, groups: int, group_size: int, tasks: int, steps: int, tokens: int, image: float
) -> int:
    """An upper bound for a method's record, except what repeated screenshots save.

    An episode kept whole has ``steps`` screenshots and ``steps * tokens`` tokens. Besides those of whole iterations, at
    most an injected trace and the rollout that it replaced are kept per group, and per task four kinds of episodes.

    Args:
        iterations: the iterations of the training.
        every: iterations between those recorded whole; 0: none.
        groups: per iteration.
        group_size: rollouts per group.
        tasks: the tasks of the training.
        steps: at most, of an episode.
        tokens: at most, of a response.
        image: bytes of a screenshot; 0 if none are kept.
    """
    recorded = iterations // every + (every > 1) if every else 0
    recorded = min(recorded, iterations)
    played = iterations * groups * group_size
    whole = recorded * groups * group_size + (iterations - recorded) * groups * 2 + 4 * tasks
    return round(
        played * HEAD_BYTES + min(whole, played + iterations * groups) * steps * (image + tokens * TOKEN_BYTES)
    )


def record_bytes(folder: Path) -> int:
    """The size of a method's episodes, groups and screenshots in bytes."""
    files = [path for path in (folder / "episodes.jsonl", folder / "groups.jsonl") if path.exists()]
    return sum(path.stat().st_size for path in (*files, *(folder / "images").rglob("*.png")))


def thin_record(folder: Path, limit: int) -> Thinned:
    """Removes steps and unshared screenshots of the oldest episodes until the record has 80 % of ``limit`` bytes.

    Screenshots that no line refers to go first. Injected traces, the rollouts that they replaced and the first episode
    of each kind go last. A screenshot that ``outcomes.jsonl`` or an episode that is kept refers to stays.
    """
    path, outcomes = folder / "episodes.jsonl", folder / "outcomes.jsonl"
    kinds: set[Kind] = set()
    lines = [_entry(index, line, kinds) for index, line in enumerate(stream_lines(path))]
    used = Counter(name for line in lines for name in line.images)
    used.update(name for line in (stream_lines(outcomes) if outcomes.exists() else ()) for name in set(_images(line)))
    excess = record_bytes(folder) - round(KEPT * limit)
    chosen: dict[int, _Entry] = {}
    # of lines that a resume has taken back, or that lost their steps right before the process was killed
    unused = [path for path in (folder / "images").rglob("*.png") if not used[path.stem]]
    freed = sum(path.stat().st_size for path in unused)
    for entry in sorted((line for line in lines if line.bytes), key=lambda line: (line.last, line.index)):
        if freed >= excess:
            break
        chosen[entry.index] = entry
        freed += entry.bytes
        for name in entry.images:
            used[name] -= 1
            if not used[name] and (image := image_path(folder, name)).exists():
                freed += image.stat().st_size
                unused.append(image)
    if chosen:
        with replaced_file(path) as file:
            for index, line in enumerate(stream_lines(path)):
                file.write(json_line(line | {"whole": False, "steps": []} if index in chosen else line).encode())
    for image in unused:
        image.unlink()
    if not chosen:
        return Thinned(0, len(unused), freed, None, None)
    iterations = [entry.iteration for entry in chosen.values()]
    return Thinned(len(chosen), len(unused), freed, min(iterations), max(iterations))


def size_text(size: float) -> str:
    """Bytes as text: ``20 kB``, ``950 MB`` or ``3.1 GB``."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An episode: its line's number, iteration, bytes of its steps, images, and whether it goes last."""

    index: int
    iteration: int
    bytes: int
    images: frozenset[str]
    last: bool


def _entry(index: int, line: Mapping[str, Any], kinds: set[Kind]) -> _Entry:
    """Adds the kind of a whole episode to ``kinds``."""
    steps, kind = line["steps"], kind_of(line)
    size = len(json_line({"steps": steps}).encode()) if steps else 0
    last = bool(line["off_policy"] or line["replaced"]) or kind not in kinds
    if steps:
        kinds.add(kind)
    return _Entry(index, int(line["iteration"]), size, frozenset(_images(line)), last)


def _images(line: Mapping[str, Any]) -> Iterable[str]:
    return (step["screenshot"] for step in line["steps"])


def record_estimate(config: Settings, folder: Path, tasks: int) -> str:
    """An upper bound for the record of each method of a run, and its limit, as one line.

    Args:
        config: the run's settings.
        folder: the folder of the run; its prepared expert traces have screenshots of the size that episodes have.
        tasks: number of training tasks.
    """
    images = [path.stat().st_size for path in islice((folder / "prepared").rglob("*.png"), _SAMPLE)]
    image = sum(images) / len(images) if images and config.record.images else 0.0
    size = estimated_bytes(
        iterations=config.train.iterations,
        every=config.record.every,
        groups=config.collect.groups,
        group_size=config.collect.group_size,
        tasks=tasks,
        steps=config.env.max_steps,
        tokens=config.policy.max_new_tokens,
        image=image,
    )
    shots = f"screenshots of {image / 1e3:.0f} kB" if image else "no screenshots"
    limit = config.record.limit_gb
    capped = "no limit" if limit is None else f"above {size_text(limit * 1e9)} the oldest episodes lose their steps"
    return f"record: at most {size_text(size)} per method ({shots}); {capped}"
