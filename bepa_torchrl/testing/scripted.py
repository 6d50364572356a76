"""A scripted policy and a desktop with one lamp: real episodes whose outcome the test determines.

The task is solved by one click. For the seed keys (seed, iteration, task number, slot) that the test selects, the
policy clicks and finishes; for others it finishes at once. Responses are parsed, performed and verified as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules.llm.policies.common import LogProbDistribution

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import row_list
from osworld_gym.desktops.base import Desktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, CommandResult, PromptContext, Screenshot
from osworld_gym.vector import DesktopVector

PRESS = "Thought: press the lamp\nAction: click(start_box='<|box_start|>(4,4)<|box_end|>')"
DONE = "Thought: done\nAction: finished(content='')"

SeedKey = tuple[int, ...]  #: (seed, iteration, task number, slot); a response's key has its step in addition


def lamp_task(number: int, *, infected: bool = False) -> Task:
    """A task that is solved when the lamp is on. With ``infected`` its setup always breaks the desktop."""
    evaluator = {
        "func": "exact_match",
        "result": {"type": "content_from_vm_file", "path": "/lamp.json"},
        "expected": {"type": "rule", "rules": {"expected": "on"}},
    }
    config = ({"type": "break", "parameters": {}},) if infected else ()
    return Task(f"lamp-{number}", f"Switch on lamp {number}", config=config, evaluator=evaluator)


class LampDesktop(Desktop):
    """A desktop of 8×8 pixels with a lamp, switched on by any click; if ``breaks()``, the click breaks the desktop."""

    has_shell = False
    blocking = False

    def __init__(self, breaks: Callable[[], bool] = lambda: False) -> None:
        self.breaks = breaks
        self.on = False
        self.seed = 0

    @property
    def screen_size(self) -> tuple[int, int]:
        return (8, 8)

    def reset(self, seed: int) -> None:
        self.on, self.seed = False, seed

    def screenshot(self) -> Screenshot:
        pixels = np.full((8, 8, 3), 255 if self.on else self.seed % 200, np.uint8)
        return Screenshot(pixels=pixels)

    def perform(self, actions: Sequence[Action]) -> None:
        if any(action.kind == "click" for action in actions):
            if self.breaks():
                raise DesktopError(FailureReason.died, "the lamp exploded")
            self.on = True

    def setup(self, step: Mapping[str, Any]) -> None:
        raise DesktopError(FailureReason.setup_failed, f"cannot {step['type']}")

    def read_file(self, path: str) -> bytes:
        if path != "/lamp.json":
            raise FileNotFoundError(path)
        return b"on" if self.on else b"off"

    def write_file(self, path: str, data: bytes) -> None:
        raise DesktopError(FailureReason.died, f"a lamp has no file {path} for {len(data)} bytes")

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        raise NotImplementedError(f"a lamp runs nothing: {command!r}, {shell}, {timeout}")

    def close(self) -> None:
        self.on = False


class ScriptedPolicy:
    """A scripted sampler, which renders its prompts itself.

    Sampled tokens have log-prob -0.5, ``get_dist`` returns -0.25, to distinguish the two.

    Args:
        wins: whether the episode of a seed key (seed, iteration, task number, slot) succeeds.
        max_prompt_bytes: maximum length of a prompt, in bytes of text.
        detour: number of additional clicks in the episode of a seed key.

    ``batches``, ``seed_keys`` and ``rendered`` record the batch sizes, seed keys and contexts of all calls.
    """

    version = 0

    def __init__(
        self,
        wins: Callable[[SeedKey], bool],
        *,
        max_prompt_bytes: int = 10_000,
        detour: Callable[[SeedKey], int] = lambda _: 0,
    ):
        self.wins, self.max_prompt_bytes, self.detour = wins, max_prompt_bytes, detour
        self.batches: list[int] = []
        self.seed_keys: list[SeedKey] = []
        self.rendered: list[PromptContext] = []

    @property
    def renderer(self) -> ScriptedPolicy:
        """The policy itself."""
        return self

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        self.rendered.extend(contexts)
        prompts: list[Prompt | None] = []
        for context in contexts:
            text = context.instruction + ("\n\n" + context.plan if context.plan else "") + "".join(context.responses)
            tokens = torch.tensor(list(text.encode()), dtype=torch.int64)
            prompts.append(Prompt(tokens, (context.screenshots[-1],)) if len(tokens) <= self.max_prompt_bytes else None)
        return prompts

    def sample(self, prompts: Sequence[Prompt], keys: Sequence[SeedKey], *, temperature: float = 1.0) -> list[Response]:
        del temperature  # the responses are scripted
        self.batches.append(len(prompts))
        self.seed_keys.extend(keys)
        return [self._response(key[:-1], key[-1]) for key in keys]

    def _response(self, key: SeedKey, step: int) -> Response:
        presses = 1 + self.detour(key) if self.wins(key) else 0
        text = PRESS if step < presses else DONE
        tokens = torch.tensor(list(text.encode())[:7], dtype=torch.int64)
        return Response(text, tokens, torch.full((7,), -0.5))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Sets ``version``; raises ValueError for any weight, since there are none."""
        names = [name for name, _ in weights]
        if names:
            raise ValueError(f"a scripted policy has no weights, got {names}")
        self.version = version

    def get_dist(self, rows: Any) -> LogProbDistribution:
        """The distribution of the response tokens: log-prob -0.25 each, left padded with 0."""
        lengths = torch.tensor([row.get(K.RESPONSE_TOKENS).shape[-1] for row in row_list(rows)])
        width = int(lengths.max())
        mask = torch.arange(width) >= width - lengths[:, None]
        return LogProbDistribution(torch.where(mask, -0.25, 0.0), mask)


def lamp_vector(num: int, *, breaks: Callable[[], bool] = lambda: False, max_steps: int = 5) -> DesktopVector:
    """A vector of ``num`` lamp desktops."""
    return DesktopVector(lambda: LampDesktop(breaks), num, EpisodeOptions(max_steps=max_steps))


class LampEnv(EnvBase):
    """An environment for collectors that use its vector only: batch size, specs, and the vector."""

    def __init__(self, vector: DesktopVector) -> None:
        super().__init__(device=None, batch_size=[len(vector)])
        n = len(vector)
        self.vector = vector
        self.observation_spec = Composite(instruction=NonTensor(shape=(n,), example_data=""), shape=(n,))
        self.action_spec = NonTensor(shape=(n,), example_data="")
        self.reward_spec = Unbounded(shape=(n, 1))
        self.done_spec = Bounded(0, 1, shape=(n, 1), dtype=torch.bool)

    def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        raise AssertionError(f"the collector resets by jobs, not here: {tensordict}, {kwargs}")

    def _step(self, tensordict: Any) -> TensorDict:
        raise AssertionError(f"the collector steps by the vector, not here: {tensordict}")

    def _set_seed(self, seed: int | None) -> None:
        del seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.vector.close()


def summary(batch: Any) -> list[tuple[Any, ...]]:
    """(group, slot, step, task, return) of every row, for comparisons."""
    return [
        (int(r[K.GROUP_ID]), int(r[K.SLOT]), int(r[K.STEP]), r[K.TASK_ID], float(r[K.RETURN])) for r in row_list(batch)
    ]
