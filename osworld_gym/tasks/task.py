"""Task: one task in OSWorld's JSON format (instruction, setup steps, evaluator), plus an oracle, a domain and tags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osworld_gym.desktops.setup_schema import check_spelling, check_step
from osworld_gym.errors import TaskError

_REQUIRED: dict[str, type] = {"id": str, "instruction": str, "evaluator": dict}
_OPTIONAL: dict[str, type] = {
    "domain": str,
    "oracle": dict,
    "tags": list,
    "snapshot": str,
    "related_apps": list,
    "proxy": bool,
}
_KEYS = (*_REQUIRED, "config", *_OPTIONAL)
#: keys whose values are members of a Task → their types
_FIELDS: dict[str, type] = {**_REQUIRED, "config": list, "domain": str, "oracle": dict, "tags": list}
#: what a user can do about a task that is not supported
FIX = "fix: correct the file, or use a version of osworld-gym that knows this"
_EVALUATOR_KEYS = ("func", "result", "expected", "options", "conj", "postconfig")


@dataclass(frozen=True)
class Task:
    """One OSWorld task (``evaluation_examples/examples/<domain>/<id>.json`` upstream).

    Args:
        id: unique within a suite.
        instruction: what the policy is asked to do.
        config: setup steps, each ``{"type": ..., "parameters": {...}}``, run in order.
        evaluator: OSWorld's ``func``, ``result``, ``expected``, ``conj``, ``options``, ``postconfig``.
        domain: the folder's name upstream (``chrome``, ``os``), or the simulated application.
        oracle: how the task is solved, read by ``osworld_gym.tasks.oracles``; None for official tasks.
        tags: free labels, e.g. ``("known",)`` for tasks that the base policy's cloning data covers.
        raw: every other key of the file, unchanged.
        unsupported: why this version of the package can neither set the task up nor score it, with the key: a key,
            setup step or evaluator that it does not know, as of a newer OSWorld. Empty: nothing is known.
        source: the file that the task was read from, for messages; empty if it is from none.
    """

    id: str
    instruction: str
    config: tuple[Mapping[str, Any], ...] = ()
    evaluator: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    oracle: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    unsupported: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, where: str = "task", keep_unsupported: bool = False) -> Task:
        """Reads one task.

        Args:
            data: the content of a task file.
            where: the source, named in errors.
            keep_unsupported: whether a task with an unknown or malformed key, setup step or evaluator is returned, with
                the reason in ``unsupported``, as long as it has an id, an instruction and an evaluator.

        Raises:
            TaskError: a required key is missing or misspelled, or a key, setup step or evaluator is malformed; the
                message names ``where`` and the key.
        """
        unsupported = ""
        try:
            _check(data, where)
        except TaskError as error:
            if not keep_unsupported or not _has_fields(data):
                raise
            unsupported = str(error).removeprefix(f"{where}: ")
        known = {"id", "instruction", "config", "evaluator", "domain", "oracle", "tags"}
        return cls(
            id=data["id"],
            instruction=data["instruction"],
            config=tuple(data.get("config") or ()),
            evaluator=data["evaluator"],
            domain=data.get("domain") or "",
            oracle=data.get("oracle"),
            tags=tuple(data.get("tags") or ()),
            raw={k: v for k, v in data.items() if k not in known},
            unsupported=unsupported,
            source=where,
        )

    @classmethod
    def load(cls, path: Path, *, keep_unsupported: bool = False) -> Task:
        """Reads one task file. The parent folder is the domain if the file has no key ``domain``.

        Args:
            path: the file.
            keep_unsupported: as of :meth:`from_json`.

        Raises:
            TaskError: the file is not readable as a JSON object, or as :meth:`from_json`.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TaskError(f"{path}: not a readable task file ({error})") from error
        if not isinstance(data, dict):
            raise TaskError(f"{path}: expected a JSON object, got {type(data).__name__}")
        if data.get("domain") is None:
            data["domain"] = path.parent.name
        return cls.from_json(data, where=str(path), keep_unsupported=keep_unsupported)

    def check_supported(self) -> None:
        """Raises TaskError if the task is ``unsupported``, with the reason and how to fix it."""
        if self.unsupported:
            raise TaskError(f"task {self.id!r} is not supported: {self.source}: {self.unsupported}; {FIX}")

    def to_json(self) -> dict[str, Any]:
        """The task as a task file's content: OSWorld's keys and ours (``domain``, ``tags``, ``oracle``)."""
        out: dict[str, Any] = {"id": self.id, "instruction": self.instruction, "config": [dict(s) for s in self.config]}
        out |= {"evaluator": dict(self.evaluator), "domain": self.domain, "tags": list(self.tags)}
        if self.oracle is not None:
            out["oracle"] = dict(self.oracle)
        return out | dict(self.raw)

    @property
    def content_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON, without ``tags`` (they may come from elsewhere)."""
        content = {key: value for key, value in self.to_json().items() if key != "tags"}
        text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check(data: Mapping[str, Any], where: str) -> None:
    """Raises TaskError as :meth:`Task.from_json`."""
    check_spelling(data, _KEYS, where)
    for key, kind in _REQUIRED.items():
        if not isinstance(data.get(key), kind):
            raise TaskError(f"{where}: key {key!r} must be {kind.__name__}, got {type(data.get(key)).__name__}")
    config = data.get("config") or []
    if not isinstance(config, list):
        raise TaskError(f"{where}: key 'config' must be a list of setup steps, got {type(config).__name__}")
    for i, step in enumerate(config):
        check_step(step, f"{where}: config[{i}]")
    check_evaluator(data["evaluator"], where)
    for key, kind in _OPTIONAL.items():
        if data.get(key) is not None and not isinstance(data[key], kind):
            raise TaskError(f"{where}: key {key!r} must be {kind.__name__}, got {type(data[key]).__name__}")
    tags = data.get("tags") or ()
    if not all(isinstance(tag, str) for tag in tags):
        raise TaskError(f"{where}: key 'tags' must be a list of str, got {tags!r}")


def _has_fields(data: Mapping[str, Any]) -> bool:
    """Whether the members of a Task have their types, whatever is in them; each setup step has a type."""
    for key, kind in _FIELDS.items():
        if not isinstance(data.get(key), kind) and (key in _REQUIRED or data.get(key)):
            return False
    steps, tags = data.get("config") or (), data.get("tags") or ()
    typed = (isinstance(step, Mapping) and isinstance(step.get("type"), str) for step in steps)
    return all(typed) and all(isinstance(tag, str) for tag in tags)


def check_evaluator(evaluator: Mapping[str, Any], where: str) -> None:
    """Checks the keys and the structure of an evaluator, including the steps of its ``postconfig``.

    ``func`` is the name of a metric or a list of names; with a list, ``result``, ``expected`` and ``options`` are lists
    of the same length.

    Raises:
        TaskError: it is malformed; the message names ``where`` and the key.
    """
    check_spelling(evaluator, _EVALUATOR_KEYS, f"{where}: evaluator")
    func = evaluator.get("func")
    names = func if isinstance(func, list) else [func]
    if not names or not all(isinstance(name, str) for name in names):
        raise TaskError(
            f"{where}: evaluator.func must be the name of a metric, or a list of at least one, got {func!r}"
        )
    if evaluator.get("conj", "and") not in ("and", "or"):
        raise TaskError(f"{where}: evaluator.conj must be 'and' or 'or', got {evaluator['conj']!r}")
    postconfig = evaluator.get("postconfig") or []
    if not isinstance(postconfig, list):
        raise TaskError(f"{where}: evaluator.postconfig must be a list of setup steps, got {postconfig!r}")
    for i, step in enumerate(postconfig):
        check_step(step, f"{where}: evaluator.postconfig[{i}]")
    if func == "infeasible":
        return
    for key in ("result", "expected", "options"):
        _check_column(evaluator.get(key), key, len(names) if isinstance(func, list) else None, where)


def _check_column(value: Any, key: str, count: int | None, where: str) -> None:
    if not value and key != "result":
        return
    if count is not None and (not isinstance(value, list) or len(value) != count):
        raise TaskError(f"{where}: evaluator.{key} must be a list of {count}, one for each metric, got {value!r}")
    for member in [value] if count is None else value:
        if not member and key != "result":
            continue
        if not isinstance(member, Mapping):
            raise TaskError(f"{where}: evaluator.{key} must be an object for each metric, got {member!r}")
        if key != "options" and not isinstance(member.get("type"), str):
            raise TaskError(f"{where}: evaluator.{key} must be a getter with a string 'type', got {member!r}")
