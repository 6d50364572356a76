"""φ: an expert's trace → a plan in words, as the paper prints it: numbered lines, effective steps only.

By rule from the steps' intents (the default), or by a language model with the paper's prompt. ``source`` says what φ
reads: the ``raw`` trace, or the ``converted`` one (numerics, section 8).
"""

from __future__ import annotations

import re
from typing import Literal

from bepa_torchrl.experts.convert import Complete, convert_trace
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from bepa_torchrl.experts.words import prompt_text, says_it_failed, sections, sentences
from osworld_gym.uitars.parse import thought_of

PlanSource = Literal["raw", "converted"]
SOURCES = ("raw", "converted")

_LINE = re.compile(r"^\s*(\d+)[.)]\s+(.+?)\s*$", re.MULTILINE)


def plan_from_trace(trace: ExpertTrace, *, source: PlanSource = "raw") -> str:
    """The plan by rule: ``1. Open "sound"`` and so on, one line per effective step.

    Left out: pure waits, repeats of the line before, steps that the expert itself called failed in the next step's
    "Previous action verification", and steps without an intent.

    Raises:
        TraceError: no effective step is left.
        ValueError: unknown source.
    """
    if source not in SOURCES:
        raise ValueError(f"plan source wants one of {', '.join(SOURCES)}, got {source!r}")
    lines = _raw_lines(trace) if source == "raw" else _converted_lines(trace)
    kept = [line for i, line in enumerate(lines) if line and (i == 0 or line != lines[i - 1])]
    if not kept:
        raise TraceError(f"{trace.where}: has no effective step to make a plan from")
    return number_lines(kept)


def plan_with_model(trace: ExpertTrace, complete: Complete, *, source: PlanSource = "raw") -> str:
    """The plan by a language model: the paper's prompt and the trace in, the numbered lines of the reply out.

    Raises:
        TraceError: the reply has no numbered line.
        ValueError: unknown source.
    """
    if source not in SOURCES:
        raise ValueError(f"plan source wants one of {', '.join(SOURCES)}, got {source!r}")
    story = _raw_story(trace) if source == "raw" else _converted_story(trace)
    reply = complete(f"{prompt_text('plan')}\nTask: {trace.instruction}\n\n{story}\n")
    lines = [text for _, text in _LINE.findall(reply)]
    if not lines:
        raise TraceError(f"{trace.where}: the model's plan has no numbered line: {reply[:200]!r}")
    return number_lines(lines)


def number_lines(lines: list[str]) -> str:
    """``1. first\\n2. second``."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def plan_lines(plan: str) -> list[str]:
    """The lines of a plan without their numbers."""
    return [text for _, text in _LINE.findall(plan)]


def _raw_lines(trace: ExpertTrace) -> list[str]:
    lines = []
    for i, step in enumerate(trace.steps):
        failed = i + 1 < len(trace.steps) and says_it_failed(trace.steps[i + 1].plan)
        waits = bool(step.actions) and all(action.kind in ("wait", "finished") for action in step.actions)
        if not failed and not waits:
            lines.append(" ".join(step.intent.split()))
    return lines


def _converted_lines(trace: ExpertTrace) -> list[str]:
    """The last sentence of each thought: the next action and its target."""
    lines = []
    for _, answer in convert_trace(trace).pairs[:-1]:
        parts = sentences(thought_of(answer), 100).replace("。", ". ").split(". ")
        lines.append(parts[-1].rstrip(". "))
    return lines


def _raw_story(trace: ExpertTrace) -> str:
    parts = []
    for number, step in enumerate(trace.steps, 1):
        action = sections(step.plan).get("Next Action", step.intent)
        parts.append(f"Step {number} [{step.subtask}]\n{action}\n{step.call}\nReflection: {step.reflection or 'null'}")
    return "\n\n".join(parts)


def _converted_story(trace: ExpertTrace) -> str:
    return "\n\n".join(f"Step {n}\n{answer}" for n, (_, answer) in enumerate(convert_trace(trace).pairs, 1))
