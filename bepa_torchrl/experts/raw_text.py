"""Expert traces in the expert's original text, for LUFFY on raw traces and log-prob diagnostics (appendix E.4)."""

from __future__ import annotations

import re
from typing import Any

from bepa_torchrl.experts.agent_s2_text import sections
from bepa_torchrl.experts.conversion import Pair
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.uitars.prompt import prompt_text


def raw_response(step: ExpertStep) -> str:
    """The expert's own text; of Agent S2 the ``executor_plan`` with its grounded action, as its worker wrote it."""
    if step.response is not None:
        return step.response
    if "Grounded Action" in sections(step.plan) or not step.call:
        return step.plan
    return f"{step.plan}\n\n(Grounded Action)\n```python\n{step.call}\n```"


def raw_pairs(trace: ExpertTrace) -> list[Pair]:
    """(PNG before the step, the expert's text) for each step.

    Raises:
        TraceError: a screenshot is missing.
    """
    trace.check_images()
    return [(png, raw_response(step)) for png, step in zip(trace.screenshots, trace.steps, strict=True)]


def worker_messages(trace: ExpertTrace, index: int, *, platform: str = "linux") -> list[dict[str, Any]]:
    """A single-turn request to Agent S2's worker for step ``index``: system message, user message with the screenshot.

    The first step of a subtask includes the subtask's text, later ones the reflection.
    """
    step = trace.steps[index]
    order = list(dict.fromkeys(other.subtask for other in trace.steps))
    place = order.index(step.subtask)
    system = _fill(
        prompt_text("s2_worker_system", __package__),
        current_subtask=step.subtask,
        task_instruction=trace.instruction,
        done_tasks="', '".join(order[:place]),
        future_tasks="', '".join(order[place + 1 :]),
        platform=platform,
        agent_api_methods=prompt_text("s2_agent_api", __package__).strip(),
    )
    first = index == 0 or trace.steps[index - 1].subtask != step.subtask
    if first:
        user = _fill(
            prompt_text("s2_worker_first", __package__), current_subtask=step.subtask, current_subtask_info=step.subtask
        )
    else:
        user = _fill(prompt_text("s2_worker_next", __package__), reflection_text=step.reflection or "")
    image = {"type": "image", "image": trace.screenshots[index]}
    return [
        {"role": "system", "content": [{"type": "text", "text": system.strip()}]},
        {"role": "user", "content": [{"type": "text", "text": user.strip()}, image]},
    ]


def _fill(template: str, **values: str) -> str:
    """The template with each ``{name}`` replaced in one pass, so that values may contain braces."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)
