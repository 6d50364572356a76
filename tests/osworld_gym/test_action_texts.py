"""What every protocol keeps: its responses are read as written, its prompts show the screenshots that are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from osworld_gym.action_text import ACTION_TEXTS, ActionText, action_text, check_preset
from osworld_gym.errors import ParseError
from osworld_gym.types import Action, PromptContext

CLICK = Action("click", start=(72, 40))
EVERY = pytest.mark.parametrize("text", ACTION_TEXTS.values(), ids=ACTION_TEXTS)


def context(text: ActionText, past: int) -> PromptContext:
    screens = tuple(f"screen {i}".encode() for i in range(past + 1))
    responses = tuple(text.format_response(f"Thought number {i}.", [CLICK]) for i in range(past))
    return PromptContext("mute", screenshots=screens, responses=responses)


def images(messages: list[dict[str, Any]]) -> list[bytes]:
    return [part["image"] for message in messages for part in message["content"] if part["type"] == "image"]


@EVERY
def test_responses_are_read_as_written(text: ActionText) -> None:
    response = text.format_response("Mute the sound.", [CLICK, Action("type", content="a")])
    assert text.parse(response).actions == (CLICK, Action("type", content="a"))
    assert "Mute the sound." in text.thought_of(response)
    assert text.parse(response).thought == text.thought_of(response)
    with pytest.raises(ParseError):
        text.parse("nothing to read")
    assert "pyautogui" not in text.thought_of("nothing to read")


@EVERY
@pytest.mark.parametrize(
    ("history", "k", "shown"),
    [("all", None, [0, 1, 2, 3, 4]), ("last_k", 1, [4]), ("last_k", 3, [2, 3, 4]), ("evict_block", 2, [2, 3, 4])],
)
def test_the_screenshots_of_a_history(text: ActionText, history: str, k: int | None, shown: list[int]) -> None:
    for preset in text.presets:
        if preset == "compact":  # one message with the current screenshot
            continue
        messages = text.build_messages(context(text, 4), preset=preset, history=history, history_images=k)
        assert images(messages) == [f"screen {i}".encode() for i in shown]
        words = "".join(p["text"] for m in messages for p in m["content"] if p["type"] == "text")
        assert "mute" in words
        assert messages[-1]["role"] == "user"


@EVERY
def test_bad_arguments_are_refused(text: ActionText) -> None:
    first = text.presets[0]
    with pytest.raises(ValueError, match="unknown prompt preset 'nice'"):
        text.build_messages(context(text, 1), preset="nice", history="all", history_images=None)
    with pytest.raises(ValueError, match="history"):
        text.build_messages(context(text, 1), preset=first, history="all", history_images=2)
    broken = PromptContext("mute", screenshots=(b"a",), responses=("x",))
    with pytest.raises(ValueError, match="one screenshot more than responses, got 1 and 1"):
        text.build_messages(broken, preset=first, history="all", history_images=None)


def test_names() -> None:
    assert action_text("opencua") is ACTION_TEXTS["opencua"]
    with pytest.raises(ValueError, match="action_text: expected one of uitars, opencua, qwen3vl; got 'qwen'"):
        action_text("qwen")
    check_preset("opencua", "thought_history")
    with pytest.raises(ValueError, match=r"action_text=opencua has the presets action_history, .* got preset='paper'"):
        check_preset("opencua", "paper")
