"""OpenCUA's messages: which steps have a screenshot, what is repeated of past responses."""

from __future__ import annotations

from typing import Any

import pytest

from osworld_gym.opencua import build_messages
from osworld_gym.types import PromptContext


def response(number: int) -> str:
    return (
        f"## Thought:\nThought {number}.\n\n## Action:\nDo {number}.\n\n## Code:\n```python\npyautogui.click(1, 2)\n```"
    )


def context(past: int) -> PromptContext:
    screens = tuple(f"screen {i}".encode() for i in range(past + 1))
    return PromptContext("mute", screenshots=screens, responses=tuple(response(i) for i in range(1, past + 1)))


def outline(messages: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Role and parts of each message but the system prompt."""
    return [
        (
            message["role"],
            *(part["text"] if part["type"] == "text" else part["image"].decode() for part in message["content"]),
        )
        for message in messages[1:]
    ]


NOW = (
    "# Task Instruction:\nmute\n\nPlease generate the next move according to the screenshot, task instruction and "
    "previous steps (if provided).\n"
)


def test_the_first_step() -> None:
    messages = build_messages(context(0))
    assert outline(messages) == [("user", "screen 0", NOW)]
    (system,) = messages[0]["content"]
    assert (messages[0]["role"], messages[0]["content"][0]["type"]) == ("system", "text")
    assert system["text"].startswith("You are a GUI agent.")
    assert 'The password of the computer is "osworld-public-evaluation".' in system["text"]
    assert "{password}" not in system["text"]


def test_three_screenshots_and_older_steps_as_one_text() -> None:
    assert outline(build_messages(context(4))) == [
        ("assistant", "# Step 1:\n## Action:\nDo 1.\n\n# Step 2:\n## Action:\nDo 2.\n"),
        ("user", "screen 2"),
        ("assistant", "# Step 3:\n## Action:\nDo 3.\n"),
        ("user", "screen 3"),
        ("assistant", "# Step 4:\n## Action:\nDo 4.\n"),
        ("user", "screen 4", NOW),
    ]


def test_thoughts_and_a_response_that_cannot_be_read() -> None:
    past = PromptContext("mute", screenshots=(b"a", b"b"), responses=("nonsense",))
    found = outline(build_messages(past, preset="thought_history", history_images=2))
    assert found[:2] == [("user", "a"), ("assistant", "# Step 1:\n## Thought:\n\n\n## Action:\n\n")]
    assert outline(build_messages(context(1), preset="thought_history", history_images=1))[0] == (
        "assistant",
        "# Step 1:\n## Thought:\nThought 1.\n\n## Action:\nDo 1.\n",
    )


def test_braces_in_an_instruction_are_text() -> None:
    past = PromptContext("type {password} and {instruction}", screenshots=(b"a",))
    assert "type {password} and {instruction}" in outline(build_messages(past))[0][2]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="requires history_images of at least 1"):
        build_messages(context(0), history_images=0)
    with pytest.raises(ValueError, match="unknown prompt preset 'paper'; known: action_history, thought_history"):
        build_messages(context(0), preset="paper")
    with pytest.raises(ValueError, match="one screenshot more than responses, got 1 and 1"):
        build_messages(PromptContext("mute", screenshots=(b"a",), responses=("x",)))
