"""The styles of the policy's thoughts in the cloning data, and the words' distribution as the target of the loss.

A style is drawn per turn, independently of the last thought's. Without a plan a terse thought is *hasty*: some of its
decisions are clicks anywhere, since it has not said what it sees; with a plan it is right. So the free style is the
good one without a plan, and a policy that takes over the terse style of its planned rollouts loses by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from osworld_gym.tasks.oracles.sim.expert_prose import VARIED
from osworld_gym.tasks.oracles.sim.free_prose import FREE, TERSE_WORD, free_thought, terse_thought, weights
from osworld_gym.types import Action
from recipes.tiny.turns import Turn

Decision = tuple[str, tuple[Action, ...]]


@dataclass(frozen=True)
class Styles:
    """How often a thought is terse, and how good it is then.

    The policy learns the probabilities ``alone`` and ``planned``, whatever the data's shares are
    (:class:`WordTargets`): so it has seen enough of a style that it seldom uses.

    Args:
        alone: probability that the policy begins a terse thought, without a plan in the prompt.
        planned: with one.
        drawn_alone: share of terse thoughts in the data without a plan.
        drawn_planned: with one.
        hasty: share of the terse thoughts without a plan whose decision is a click anywhere.
    """

    alone: float = 0.02
    planned: float = 0.9
    drawn_alone: float = 0.1
    drawn_planned: float = 0.7
    hasty: float = 0.25


def worded(
    turn: Turn, seen: str, before: str, styles: Styles, rng: random.Random, anywhere: Callable[[], Decision]
) -> Turn:
    """The turn with its thought, and the last one in its prompt, in a style.

    Args:
        turn: with bare decisions as thoughts.
        seen: what the screen shows (:func:`osworld_gym.tasks.oracles.sim.free_prose.seen_on`).
        before: what it showed when the last thought was written.
        styles: shares of the styles.
        rng: draws styles and words.
        anywhere: makes a hasty decision.
    """
    share = styles.drawn_alone if turn.plan is None else styles.drawn_planned
    thought, actions = turn.thought, turn.actions
    if rng.random() < share:
        # what is to be clicked is said in a grounding turn's instruction: there is nothing to decide
        if turn.plan is None and turn.instruction != turn.thought and rng.random() < styles.hasty:
            thought, actions = anywhere()
        thought = terse_thought(thought)
    else:
        thought = free_thought(thought, seen, rng)
    last = turn.last
    if last is not None:
        last = terse_thought(last) if rng.random() < share else free_thought(last, before, rng)
    return replace(turn, thought=thought, actions=actions, last=last)


class WordTargets:
    """The distribution of each position whose word is drawn, in the policy's thoughts and in the expert's prose.

    The loss compares the policy with the distribution itself instead of with the word drawn from it. Its gradient has
    the same mean and none of the draw's noise: at its minimum, it is zero for every sample.

    Args:
        tokenizer: each word is one token of it.
        styles: the probabilities of the first word.

    Raises:
        ValueError: a word is not a single token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, styles: Styles) -> None:
        positions = [_first_word(styles.alone), _first_word(styles.planned)]
        positions += [dict(zip(words, weights(words), strict=True)) for words in FREE[1:]]
        positions += [dict.fromkeys(words, 1 / len(words)) for words in VARIED]
        size = max(len(position) for position in positions)
        self.ids = torch.zeros(1 + len(positions), size, dtype=torch.long)
        self.weights = torch.zeros(1 + len(positions), size)
        self._members: list[frozenset[int]] = [frozenset()]
        for number, position in enumerate(positions, 1):
            tokens = [_only_token(tokenizer, word) for word in position]
            self.ids[number, : len(tokens)] = torch.tensor(tokens)
            self.weights[number, : len(tokens)] = torch.tensor(list(position.values()))
            self._members.append(frozenset(tokens))
        logs = torch.where(self.weights > 0, self.weights, 1.0).log()
        self._entropy = -(self.weights * logs).sum(-1)
        last = 1 + len(FREE)
        self._native = {False: (1, *range(3, 1 + last)), True: (2, *range(3, 1 + last))}
        self._expert = tuple(range(1 + last, 1 + len(positions)))

    def positions(self, turn: Turn, thought: Sequence[int]) -> list[int]:
        """For each token of the turn's thought, the number of its position, or 0 if it follows from the prompt."""
        order = list(self._expert if turn.prose else self._native[turn.plan is not None])
        found = []
        for token in thought:
            here = bool(order) and token in self._members[order[0]]
            found.append(order.pop(0) if here else 0)
        return found

    def divergence(self, log_probs: Tensor, position: Tensor) -> Tensor:
        """Kullback–Leibler divergence of the policy from the words' distribution, ``[M]``; 0 elsewhere.

        Args:
            log_probs: ``[M, vocabulary]``.
            position: int64 ``[M]``, from :meth:`positions`.
        """
        chosen = log_probs.gather(1, self.ids[position])
        return -(self.weights[position] * chosen).sum(-1) - self._entropy[position]


def _first_word(terse: float) -> dict[str, float]:
    """The distribution of a thought's first word."""
    opener = FREE[0]
    free = {word: (1 - terse) * weight for word, weight in zip(opener, weights(opener), strict=True)}
    return free | {TERSE_WORD: terse}


def _only_token(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    """The token of a word after a space."""
    ids = tokenizer(f" {word}")["input_ids"]
    if len(ids) != 1:
        raise ValueError(f"expected one token for {word!r}, got {len(ids)}; the tokenizer's corpus lacks it")
    return int(ids[0])
