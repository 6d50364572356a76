"""Run: one run of an expert as a reader found it, before its screenshots are loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bepa_torchrl.experts.conversion import HARMLESS, step_actions
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.errors import ParseError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.uitars.format import format_action

USES = ("plan", "converted", "raw")  #: what a run may be usable for


class Outcome(StrEnum):
    """How a run ended. Only the first two are the expert's; the others say nothing about it."""

    success = "success"  #: the evaluator returned 1
    failure = "failure"  #: the evaluator returned less than 1
    crashed = "crashed"  #: the runner wrote an error
    no_result = "no result"  #: interrupted, or nobody evaluated it


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Args:
        family: name of the runner family.
        task_id: the task, as the log names it.
        run: the run's folder below the source, and ``#2`` for the second run in one file.
        outcome: how it ended.
        steps: the steps, in order.
        inexact: (index of a step, reason) of steps that ``actions`` does not represent exactly.
        pictures: the file of the screenshot before each step; None where there is none.
        final: the file of the screenshot after the last step, or None.
        instruction: the instruction of the task, where the log has it.
        env_seed: the seed of the desktop, where the log has it.
        judged: a model, and no evaluator, calls the run a success. It is then usable, but never a verified success.
        problems: sentences for the user about what is missing.
        skipped: why the run cannot be read as a trace; empty if it can.
    """

    family: str
    task_id: str
    run: str
    outcome: Outcome
    steps: tuple[ExpertStep, ...] = ()
    inexact: tuple[tuple[int, str], ...] = ()
    pictures: tuple[Path | None, ...] = ()
    final: Path | None = None
    instruction: str = ""
    env_seed: int | None = None
    judged: bool = False
    problems: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def usable(self) -> tuple[str, ...]:
        """The uses of the run, of :data:`USES`; nothing unless it is a success."""
        if self.skipped or not (self.outcome == Outcome.success or self.judged):
            return ()
        images = bool(self.steps) and None not in self.pictures
        fits = {
            "plan": any(step.intent and not _idle(step) for step in self.steps),
            "converted": images and self._convertible(),
            "raw": images and all(step.response or step.plan for step in self.steps),
        }
        return tuple(use for use in USES if fits[use])

    def _convertible(self) -> bool:
        """Whether each step has a form in the policy's action text, and a screenshot to finish on."""
        last = self.steps[-1].actions
        ends = bool(last) and last[-1].kind in ("finished", "call_user")
        return not without_form(self.steps) and not self.inexact and (ends or self.final is not None)

    def trace(self, instruction: str | None = None, task_id: str | None = None, *, images: bool = True) -> ExpertTrace:
        """The run with its screenshots loaded.

        Args:
            instruction: the task's in its suite; None: the log's.
            task_id: the task's id in its suite; None: the log's.
            images: False: the screenshots are not kept, only their hashes.

        Raises:
            TraceError: a screenshot cannot be read, or the run was skipped.
        """
        if self.skipped:
            raise TraceError(f"{self.run}: {self.skipped}")
        return ExpertTrace(
            task_id=task_id or self.task_id,
            instruction=self.instruction if instruction is None else instruction,
            expert=self.family,
            steps=self.steps,
            screenshots=tuple(_read(path) if path and images else b"" for path in self.pictures),
            success=self.outcome == Outcome.success,
            final_screenshot=_read(self.final) if self.final and images else None,
            env_seed=self.env_seed,
            run=self.run,
            inexact=self.inexact,
            left_out=None if images else tuple(_hash(path) if path else None for path in (*self.pictures, self.final)),
        )


def _idle(step: ExpertStep) -> bool:
    return bool(step.actions) and all(action.kind in ("wait", "finished") for action in step.actions)


def without_form(steps: Sequence[ExpertStep]) -> list[int]:
    """Indices of the steps that UI-TARS's text cannot represent exactly."""
    return [index for index, step in enumerate(steps) if not _has_form(step, last=index == len(steps) - 1)]


def _has_form(step: ExpertStep, *, last: bool) -> bool:
    """Whether UI-TARS's text has a form of the step's actions, or the step did not act on the desktop."""
    try:
        for action in step_actions(step, last=last):
            format_action(action)
    except ParseError as error:
        return error.reason in HARMLESS
    except ValueError:
        return False
    return True


def _hash(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TraceError(f"{path}: not a readable screenshot ({error})") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: not a readable screenshot ({error})") from error
