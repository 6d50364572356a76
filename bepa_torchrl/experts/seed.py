"""A folder of traces that seeds the caches of runs (``cache.seed``). This module imports no torch.

    seed.json   what the traces are of: suite, tasks with their hashes, action text, image scaling, tokens
    cache/      the traces, a saved TaskTraceCache

``bepa experts selfroll`` writes one with D_self, ``bepa experts convert`` one with D_conv.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bepa_torchrl.experts.manifest import check_disjoint
from bepa_torchrl.experts.trace import TraceError, read_json
from osworld_gym.atomic import write_text
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task
from osworld_gym.uitars.coords import ImageScaling

if TYPE_CHECKING:
    from bepa_torchrl.cache import TaskTraceCache
    from bepa_torchrl.policies.base import ModelSampler

SCHEMA = "bepa.seed/1"
FILE, CACHE = "seed.json", "cache"
Kind = Literal["self_rolled", "converted"]
KINDS = ("self_rolled", "converted")
#: encoded by a policy's tokenizer; equal tokens are taken for an equal tokenizer
_PROBE = "Thought: I öffne Omega_2, then Ctrl+S.\nAction: click(start_box='<|box_start|>(1265,245)<|box_end|>')"


@dataclass(frozen=True, slots=True)
class Seed:
    """The traces of a folder, with the tasks and the policy that they are of.

    Args:
        folder: the folder.
        kind: ``self_rolled`` (D_self) or ``converted`` (D_conv).
        suite: name of the suite.
        tasks: task id → content hash of each task with a trace.
        action_text: the action text in which the responses are written.
        scaling: the policy's image scaling, as a mapping.
        tokens: hash of a text's tokens, which tells tokenizers apart.
        option: the setting or option that names the folder, for error messages.
    """

    folder: Path
    kind: Kind
    suite: str
    tasks: Mapping[str, str]
    action_text: str
    scaling: Mapping[str, int | None]
    tokens: str
    option: str = "cache.seed"

    @property
    def where(self) -> str:
        """Its name in error messages."""
        return f"{self.option}={self.folder}"

    def check_tasks(self, suite: Suite, train: Iterable[Task], held_out: Iterable[Task], action_text: str) -> None:
        """Checks that the traces fit a run.

        Raises:
            TraceError: a trace is of a held-out task, of one that has changed or that the suite lacks; none is of a
                training task; or their responses are in another action text.
        """
        check_disjoint(self.tasks, (task.id for task in held_out), self.where)
        known = {task.id: task.content_hash for task in suite.tasks}
        for task_id, expected in self.tasks.items():
            if known.get(task_id) != expected:
                what = "has changed since" if task_id in known else f"is not in suite {suite.name!r}"
                raise TraceError(f"{self.where}: its task {task_id!r} {what}; make the folder again for this suite")
        if not any(task.id in self.tasks for task in train):
            raise TraceError(
                f"{self.where}: none of its {len(self.tasks)} traces is of a training task; choose another "
                "env.train_split"
            )
        if action_text != self.action_text:
            raise TraceError(
                f"{self.where}: its responses are in the action text {self.action_text!r}, and "
                f"policy.action_text={action_text}; make the folder again with this policy"
            )

    def check_policy(self, policy: ModelSampler, scaling: ImageScaling) -> None:
        """Checks that the policy sees the same pixels and has the same tokenizer. Raises TraceError if not."""
        expected = asdict(scaling)
        if dict(self.scaling) != expected:
            raise TraceError(
                f"{self.where}: its coordinates are of the image scaling {dict(self.scaling)}, the policy's is "
                f"{expected}; make the folder again with this checkpoint"
            )
        if self.tokens != token_hash(policy):
            raise TraceError(
                f"{self.where}: its traces have the tokens of another tokenizer; make the folder again with this "
                "checkpoint"
            )

    def load(self, policy: ModelSampler, tasks: Iterable[Task]) -> TaskTraceCache:
        """The traces of these tasks, with the prompts of the policy as it is now; their responses keep their tokens.

        Raises:
            FolderError: the folder is damaged. TraceError: a prompt exceeds the policy's context length.
        """
        from bepa_torchrl.cache import TaskTraceCache
        from bepa_torchrl.experts.rows import plan_free_rows

        stored, cache = TaskTraceCache(), TaskTraceCache()
        stored.loads(self.folder / CACHE)
        for task in tasks:
            if stored.contains(task.id):
                cache.put(task.id, plan_free_rows(policy, stored.get_trace(task.id)))
        return cache


def read_seed(folder: Path, *, option: str = "cache.seed") -> Seed:
    """Reads a folder, which ``option`` names.

    Raises:
        TraceError: it is no such folder.
    """
    data = read_json(folder / FILE) if (folder / FILE).exists() else {}
    if data.pop("schema", None) != SCHEMA or data.get("kind") not in KINDS:
        raise TraceError(
            f"{option}={folder}: expected a folder of `bepa experts selfroll` or `convert`, with a {FILE} of schema "
            f"{SCHEMA!r}"
        )
    try:
        return Seed(folder, **data, option=option)
    except TypeError as error:
        raise TraceError(f"{folder / FILE}: incomplete ({error}); make the folder again") from error


def write_seed(
    folder: Path,
    cache: TaskTraceCache,
    kind: Kind,
    *,
    suite: Suite,
    action_text: str,
    scaling: ImageScaling,
    policy: ModelSampler,
) -> None:
    """Writes a cache and what it is of into an empty folder. Raises FolderError or OSError if it cannot."""
    cache.dumps(folder / CACHE)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": kind,
        "suite": suite.name,
        "tasks": {task_id: suite.task(task_id).content_hash for task_id in sorted(cache.task_ids())},
        "action_text": action_text,
        "scaling": asdict(scaling),
        "tokens": token_hash(policy),
    }
    write_text(folder / FILE, json.dumps(data, indent=1, ensure_ascii=False))


def token_hash(policy: ModelSampler) -> str:
    """First 16 hex digits of the SHA-256 of the tokens of a fixed text."""
    return hashlib.sha256(json.dumps(policy.renderer.encode_response(_PROBE).tolist()).encode()).hexdigest()[:16]
