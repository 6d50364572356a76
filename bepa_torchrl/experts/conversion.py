"""Converts an expert's trace to the policy's format: (screenshot, response) pairs, D_conv.

Actions are those that were performed, or parsed from the expert's grounded code; a model may write the thoughts only
(with the paper's conversion prompt). Steps that are not actions on the screen are dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bepa_torchrl.experts.agent_s2_text import sections, sentences
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.action_text import ACTION_TEXTS, ActionText
from osworld_gym.errors import ParseError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.format import describe_action
from osworld_gym.uitars.parse import thought_of
from osworld_gym.uitars.prompt import prompt_text
from osworld_gym.uitars.pyautogui import from_pyautogui
from osworld_gym.uitars.read_pyautogui import MAX_SCROLLS, SCROLL_CLICKS, scrolls

Complete = Callable[[str], str]  #: a language model: prompt → reply
Pair = tuple[bytes, str]  #: (PNG before the response, the response)

LAST_THOUGHT = "The task is done."
HARMLESS = ("subtask_done", "no_input")  #: reasons of dropped steps that did not act on the desktop
#: calls of the framework's memory, which do not act on the screen
_NOT_ON_SCREEN = ("agent.save_to_knowledge", "agent.set_cell_values", "agent.call_code_agent")


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted trace.

    Args:
        pairs: (PNG before the response, response); the last response is ``finished()``.
        steps: index of each pair's step; -1 for a ``finished()`` that conversion adds.
        dropped: (index of the step, reason) of steps without a response. Reasons: ``framework`` (memory, cell
            values, code agents), ``subtask_done``, ``no_input`` (the step did nothing), ``not_convertible`` (also: the
            action text has no form for the step's actions), and those of
            :func:`~osworld_gym.uitars.pyautogui.from_pyautogui`.
        inexact: (index of the step, reason) of converted steps that do not represent exactly what was executed, or do
            so with an action that the policy's prompts do not list (``not_prompted``), such as ``hover`` in UI-TARS's.
    """

    pairs: tuple[Pair, ...]
    steps: tuple[int, ...]
    dropped: tuple[tuple[int, str], ...]
    inexact: tuple[tuple[int, str], ...] = ()

    @property
    def by_step(self) -> dict[int, Pair]:
        """The pairs by index of their step, without an added ``finished()``."""
        return {index: pair for index, pair in zip(self.steps, self.pairs, strict=True) if index >= 0}

    @property
    def faithful(self) -> bool:
        """Whether every step that acted is there, exactly as it was executed, in actions that the prompts list."""
        return not self.inexact and all(reason in HARMLESS for _, reason in self.dropped)

    @property
    def reasons(self) -> dict[str, int]:
        """Number of dropped steps by reason."""
        return dict(Counter(reason for _, reason in self.dropped))


def convert(trace: ExpertTrace, scaling: ImageScaling | None = None) -> list[Pair]:
    """The pairs of :func:`convert_trace`."""
    return list(convert_trace(trace, scaling).pairs)


def convert_trace(
    trace: ExpertTrace,
    scaling: ImageScaling | None = None,
    *,
    complete: Complete | None = None,
    action_text: str = "uitars",
) -> Converted:
    """Rewrites every step that is an action on the screen as a response of the policy's action text.

    Args:
        trace: the expert's trace.
        scaling: the scaling of the policy's image processor; None if the policy's coordinates are screen pixels.
        complete: a language model that writes the thoughts with the paper's prompt; None: by rule, from the
            expert's text.
        action_text: a name of :data:`osworld_gym.action_text.ACTION_TEXTS`.

    Raises:
        TraceError: no step can be converted, or the trace lacks a screenshot (the last one only for ``finished()``).
    """
    trace.check_images()
    text = ACTION_TEXTS[action_text]
    pairs: list[Pair] = []
    steps: list[int] = []
    dropped: list[tuple[int, str]] = []
    inexact: list[tuple[int, str]] = []
    finished = False
    for index, (step, png) in enumerate(zip(trace.steps, trace.screenshots, strict=True)):
        last = index == len(trace.steps) - 1
        try:
            actions = step_actions(step, last=last)
        except ParseError as error:
            dropped.append((index, error.reason))
            continue
        if scaling is not None:
            actions = [scaling.action_to_model(action, trace.screen_size) for action in actions]
        thought = step_thought(step) if complete is None else model_thought(step, actions, complete)
        response, rounded = _response(text, thought, actions)
        if response is None:
            dropped.append((index, "not_convertible"))
            continue
        pairs.append((png, response))
        steps.append(index)
        if rounded:
            inexact.append((index, "not_exact"))
        if any(action.kind in text.unprompted for action in actions):
            inexact.append((index, "not_prompted"))
        finished = actions[-1].kind in ("finished", "call_user")
    if not finished:
        if trace.final_screenshot is None or not pairs:
            raise TraceError(f"{trace.where}: nothing to convert, or no screenshot after its last step to finish on")
        pairs.append((trace.final_screenshot, text.format_response(LAST_THOUGHT, [Action("finished")])))
        steps.append(-1)
    inexact += [(index, reason) for index, reason in trace.inexact if index in steps]
    return Converted(tuple(pairs), tuple(steps), tuple(dropped), tuple(sorted(inexact)))


def _response(text: ActionText, thought: str, actions: Sequence[Action]) -> tuple[str | None, bool]:
    """The response, None if the text has no form for the actions, and whether its wheel clicks are others.

    A text without a number of wheel clicks scrolls by the nearest multiple of ``SCROLL_CLICKS``.
    """
    plain: list[Action] = []
    exact = True
    for action in actions:
        times = 1 if action.clicks is None else min(MAX_SCROLLS, scrolls(action.clicks))
        exact = exact and action.clicks in (None, times * SCROLL_CLICKS)
        plain += [replace(action, clicks=None)] * times
    for form in (actions, plain):
        try:
            return text.format_response(thought, form), form is plain and not exact
        except ValueError:
            continue
    return None, False


def step_actions(step: ExpertStep, *, last: bool) -> list[Action]:
    """The step's actions in screen pixels: those that were performed, otherwise those parsed from its grounded code.

    Raises:
        ParseError: the step cannot be converted; ``reason`` as in :class:`Converted`.
    """
    if step.call.startswith(_NOT_ON_SCREEN):
        raise ParseError("framework", step.call)
    if not step.actions and not step.pyautogui.strip():
        raise ParseError("no_input", step.call)
    actions = list(step.actions) or from_pyautogui(step.pyautogui, exact=True)
    if not actions:
        raise ParseError("not_convertible", step.pyautogui)
    if actions[-1].kind == "finished" and not last:
        raise ParseError("subtask_done", step.pyautogui)
    return actions


def step_thought(step: ExpertStep) -> str:
    """A thought by rule: the first sentences of the expert's screenshot analysis and of its next action.

    Of a text without these sections it is the first sentence, and the one that tells what the step does.
    """
    parts = sections(step.plan)
    if step.intent.strip() and parts == {"Next Action": step.plan.strip()}:
        seen, planned = sentences(step.plan, 1), sentences(step.intent, 1)
        if planned.rstrip(".") in seen:
            return seen
        return " ".join(part for part in (seen, _ended(planned)) if part)
    seen = sentences(parts.get("Screenshot Analysis", ""), 1)
    planned = sentences(parts.get("Next Action", "") or step.intent, 1)
    return " ".join(part for part in (seen, planned) if part)


def _ended(sentence: str) -> str:
    """The sentence with a full stop, which intents do not have."""
    return sentence if sentence.endswith((".", "!", "?", "。", "！", "？")) else f"{sentence}."


def model_thought(step: ExpertStep, actions: list[Action], complete: Complete) -> str:
    """A thought by the paper's conversion prompt; falls back to :func:`step_thought` if the reply has none."""
    calls = "; ".join(describe_action(action) for action in actions)
    request = (
        f"{prompt_text('conversion', __package__)}\nexecutor_plan: {step.plan}\n"
        f"reflection: {step.reflection or 'null'}\n"
        f"pyautogui_action: {step.pyautogui}\n(The action in UI-TARS notation is {calls})\n"
    )
    return thought_of(complete(request)) or step_thought(step)
