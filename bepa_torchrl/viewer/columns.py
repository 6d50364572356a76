"""The table of all episodes as columns of numbers; texts are numbers of a list that all columns share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bepa_torchrl.viewer.episode import ShownEpisode

#: columns of texts, by what they have of an episode
TEXTS: dict[str, Callable[[ShownEpisode], str]] = {
    "task": lambda episode: episode.task,
    "instruction": lambda episode: episode.instruction,
    "source": lambda episode: episode.source,
    "outcome": lambda episode: episode.outcome,
    "stop": lambda episode: episode.failure or episode.stop,
    "mode": lambda episode: episode.mode,
    "expert": lambda episode: episode.expert,
}
#: columns of numbers
NUMBERS: dict[str, Callable[[ShownEpisode], float | None]] = {
    "iteration": lambda episode: episode.iteration,
    "group": lambda episode: episode.group,
    "slot": lambda episode: episode.slot,
    "reward": lambda episode: episode.reward,
    "advantage": lambda episode: episode.advantage,
    "version": lambda episode: episode.version,
    "injected": lambda episode: int(episode.injected),
    "trained": lambda episode: None if episode.trained is None else int(episode.trained),
    "steps": lambda episode: episode.count,
    "sampled": lambda episode: _rounded(episode.mean_log_probs[0]),
    "current": lambda episode: _rounded(episode.mean_log_probs[1]),
}


class Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


class Columns:
    """The columns of one stream.

    Args:
        texts: shared by all streams.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.values: dict[str, list[Any]] = {name: [] for name in (*TEXTS, *NUMBERS)}

    def __len__(self) -> int:
        return len(self.values["task"])

    def add(self, episode: ShownEpisode) -> None:
        for name, text_of in TEXTS.items():
            self.values[name].append(self.texts.number(text_of(episode)))
        for name, number_of in NUMBERS.items():
            self.values[name].append(number_of(episode))

    def shorten(self, length: int) -> None:
        """Removes the episodes from ``length`` on."""
        for column in self.values.values():
            del column[length:]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
