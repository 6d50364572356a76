"""Prompts of OpenCUA models: chat messages of one step, as in OSWorld's ``mm_agents/opencua/opencua_agent.py``.

Unlike UI-TARS's prompts they repeat of past responses the sections ``Thought`` and ``Action`` only, not the code, with
the number of the step; the task comes after the newest screenshot, and steps without a screenshot become one message.
So no prompt extends the one before it, with any history.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from osworld_gym.opencua.parse import sections
from osworld_gym.types import PromptContext
from osworld_gym.uitars.history import first_image
from osworld_gym.uitars.prompt import instruction_text, prompt_text

Message = dict[str, Any]  #: {"role": str, "content": list of {"type": "text"|"image", ...}}

_STEP = "# Step {number}:\n"
#: preset → what is repeated of past responses; the names are those of the agent's ``history_type``
_REPEATED = MappingProxyType(
    {
        "action_history": "## Action:\n{Action}\n",
        "thought_history": "## Thought:\n{Thought}\n\n## Action:\n{Action}\n",
    }
)
PRESETS = tuple(_REPEATED)
_INSTRUCTION = (
    "# Task Instruction:\n{instruction}\n\n"
    "Please generate the next move according to the screenshot, task instruction and previous steps (if provided).\n"
)


def system_text(password: str = "osworld-public-evaluation") -> str:  # noqa: S107 - public
    """The system prompt.

    Args:
        password: the password of the desktop's user, which the prompt states.
    """
    return prompt_text("system_l2", "osworld_gym.opencua").replace("{password}", password)


def build_messages(
    context: PromptContext,
    *,
    preset: str = "action_history",
    history: str = "last_k",
    history_images: int | None = 3,
    password: str = "osworld-public-evaluation",  # noqa: S107 - public
) -> list[Message]:
    """Chat messages for one step. Image parts reference the context's PNG bytes without copying.

    Args:
        context: the episode so far.
        preset: what is repeated of past responses: ``action_history`` (the section ``Action``) or ``thought_history``
            (``Thought`` and ``Action``).
        history: one of :data:`osworld_gym.uitars.history.HISTORIES`; OSWorld's agent has ``last_k``, with 3 images.
        history_images: k of that module, the current screenshot included; None with ``all``.
        password: the password of the desktop's user, which the system prompt states.

    Raises:
        ValueError: an unknown preset or history, or a context whose number of screenshots is not that of the responses
            plus 1.
    """
    past = len(context.responses)
    if len(context.screenshots) != past + 1:
        raise ValueError(
            f"a prompt requires one screenshot more than responses, got {len(context.screenshots)} and {past}"
        )
    if preset not in _REPEATED:
        raise ValueError(f"unknown prompt preset {preset!r}; known: {', '.join(PRESETS)}")
    messages = [_message("system", _text(system_text(password)))]
    steps = [_step(number, text, _REPEATED[preset]) for number, text in enumerate(context.responses, 1)]
    first = first_image(len(context.screenshots), history, history_images)
    if first:
        messages.append(_message("assistant", _text("\n".join(steps[:first]))))
    for step in range(first, past):
        messages += [_message("user", _image(context.screenshots[step])), _message("assistant", _text(steps[step]))]
    words = _INSTRUCTION.replace("{instruction}", instruction_text(context))
    return [*messages, _message("user", _image(context.screenshots[-1]), _text(words))]


def _step(number: int, response: str, template: str) -> str:
    parts = sections(response)
    words = template.replace("{Thought}", parts.get("Thought", "")).replace("{Action}", parts.get("Action", ""))
    return _STEP.replace("{number}", str(number)) + words


def _message(role: str, *parts: dict[str, Any]) -> Message:
    return {"role": role, "content": list(parts)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(png: bytes) -> dict[str, Any]:
    return {"type": "image", "image": png}
