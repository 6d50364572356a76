"""φ: turns an expert's trace into a textual plan of numbered lines, with effective steps only (paper, LEVEL-1).

By rule from the steps' intents (the default), or by a language model with the paper's prompt. ``source`` selects φ's
input: the ``raw`` trace, or the ``converted`` one (docs/definitions.md, "Self-rollout and plans").
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from bepa_torchrl.endpoint import image_part, without_thinking
from bepa_torchrl.experts.agent_s2_text import says_it_failed, sections, split_sentences
from bepa_torchrl.experts.conversion import Complete, convert_trace
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.uitars.parse import thought_of
from osworld_gym.uitars.prompt import prompt_text

PlanSource = Literal["raw", "converted"]
SOURCES = ("raw", "converted")

_BY_CHANCE = re.compile(r"\b(?:close|dismiss)\b.*\b(?:pop-?up|notification)\b", re.IGNORECASE)
_LINE = re.compile(r"^\s*(\d+)[.)]\s+(.+?)\s*$", re.MULTILINE)


def plan_from_trace(trace: ExpertTrace, *, source: PlanSource = "raw") -> str:
    """The plan by rule: ``1. Open sound`` and so on, one line per effective step.

    Left out are waits and ``finished``; steps without an intent; steps that the expert described as failed in the next
    step's "Previous action verification"; closing pop-ups, which appear at random; a step that is repeated after it
    changed nothing on the screen; and repeated scrolling.

    Raises:
        TraceError: the trace has no effective step.
        ValueError: unknown source.
    """
    _check_source(source)
    lines = _raw_lines(trace) if source == "raw" else _converted_lines(trace)
    if not lines:
        raise TraceError(f"{trace.where}: has no effective step to make a plan from")
    return number_lines(lines)


def plan_with_model(trace: ExpertTrace, complete: Complete, *, source: PlanSource = "raw") -> str:
    """The plan by a language model, from the paper's prompt and the trace: the numbered lines of the reply.

    Raises:
        TraceError: the reply has no numbered line.
        ValueError: unknown source.
    """
    (message,) = plan_messages(trace, source=source)
    reply = complete(message["content"])
    try:
        return parse_plan(reply)
    except ValueError as error:
        raise TraceError(f"{trace.where}: the model's plan {error}: {reply[:200]!r}") from error


def plan_messages(trace: ExpertTrace, *, source: PlanSource = "raw", images: bool = False) -> list[dict[str, Any]]:
    """The chat messages that ask for a plan: the paper's prompt, the task, and the trace's steps.

    Args:
        trace: the expert's trace.
        source: input of the plan.
        images: whether the screenshot before each step comes with it; a step without one is text alone.

    Raises:
        TraceError: ``source`` is ``converted``, and the trace cannot be converted.
        ValueError: unknown source.
    """
    _check_source(source)
    story = _raw_story(trace) if source == "raw" else _converted_story(trace)
    head = f"{prompt_text('plan', __package__)}\nTask: {trace.instruction}\n\n"
    if not images:
        return [{"role": "user", "content": head + "\n\n".join(text for text, _ in story) + "\n"}]
    parts: list[dict[str, Any]] = [{"type": "text", "text": head}]
    for text, png in story:
        parts.append({"type": "text", "text": f"{text}\n\n"})
        parts += [image_part(png)] if png else []
    return [{"role": "user", "content": parts}]


def parse_plan(reply: str, *, max_characters: int | None = None) -> str:
    """The plan in a model's reply: its numbered lines, without those of its thinking.

    Raises:
        ValueError: it has none, or is longer than ``max_characters``.
    """
    lines = plan_lines(without_thinking(reply))
    if not lines:
        raise ValueError("has no numbered line")
    return check_length(number_lines(lines), max_characters)


def check_length(plan: str, max_characters: int | None) -> str:
    """The same plan.

    Raises:
        ValueError: it is longer than ``max_characters``; None: it may have any length.
    """
    if max_characters is not None and len(plan) > max_characters:
        raise ValueError(f"has {len(plan)} characters, more than the {max_characters} that a plan may have")
    return plan


def plan_hash(plan: str) -> str:
    """First 16 hex digits of the plan's SHA-256."""
    return hashlib.sha256(plan.encode()).hexdigest()[:16]


def number_lines(lines: list[str]) -> str:
    r"""Joins numbered lines: ``1. first\n2. second``."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def plan_lines(plan: str) -> list[str]:
    """The lines of a plan without their numbers."""
    return [text for _, text in _LINE.findall(plan)]


def effective_steps(trace: ExpertTrace) -> list[int]:
    """Indices of the steps that :func:`plan_from_trace` keeps."""
    frames = trace.image_hashes
    kept = []
    for i, step in enumerate(trace.steps):
        after = trace.steps[i + 1] if i + 1 < len(trace.steps) else None
        idle = bool(step.actions) and all(action.kind in ("wait", "finished") for action in step.actions)
        failed = after is not None and says_it_failed(after.plan)
        repeated = after is not None and after.intent == step.intent
        scrolled = bool(step.actions) and all(action.kind == "scroll" for action in step.actions)
        still = frames[i] is not None and frames[i] == frames[i + 1]
        useless = repeated and (scrolled or still)
        if step.intent.strip() and not (idle or failed or useless or _BY_CHANCE.search(step.intent)):
            kept.append(i)
    return kept


def _raw_lines(trace: ExpertTrace) -> list[str]:
    return [" ".join(trace.steps[i].intent.split()) for i in effective_steps(trace)]


def _converted_lines(trace: ExpertTrace) -> list[str]:
    """The last sentence of each effective step's thought: the next action and its target."""
    effective = set(effective_steps(trace))
    lines = []
    for index, (_, response) in convert_trace(trace).by_step.items():
        if index in effective:
            lines.append(split_sentences(thought_of(response))[-1].rstrip("."))
    return lines


def _raw_story(trace: ExpertTrace) -> list[tuple[str, bytes]]:
    """The text of each step, with the screenshot before it; empty bytes where there is none."""
    story = []
    for number, (step, png) in enumerate(zip(trace.steps, trace.screenshots, strict=True), 1):
        text = f"Step {number} [{step.subtask}]\n{_told(step)}\n{step.call}\nReflection: {step.reflection or 'null'}"
        story.append((text, png))
    return story


def _told(step: ExpertStep) -> str:
    """What a step does in the expert's words, with its intent where they do not have it: a log may have no texts."""
    said = sections(step.plan).get("Next Action", "")
    told = " ".join(step.intent.split()) in " ".join(said.split())
    return said if told else "\n".join(part for part in (said, step.intent) if part)


def _converted_story(trace: ExpertTrace) -> list[tuple[str, bytes]]:
    return [(f"Step {n}\n{response}", png) for n, (png, response) in enumerate(convert_trace(trace).pairs, 1)]


def _check_source(source: str) -> None:
    if source not in SOURCES:
        raise ValueError(f"plan source must be one of {', '.join(SOURCES)}, got {source!r}")
