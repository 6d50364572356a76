"""Qwen3-VL's messages: the official system prompt, which steps have a screenshot, what is said of the others."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from osworld_gym.qwen3vl import build_messages
from osworld_gym.qwen3vl.prompt import system_text
from osworld_gym.types import PromptContext

WAIT = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait"}}\n</tool_call>'


def response(number: int) -> str:
    return f"Action: Do {number}.\n{WAIT}"


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


def task(previous: str) -> str:
    return (
        "\nPlease generate the next move according to the UI screenshot, instruction and previous actions.\n\n"
        f"Instruction: mute\n\nPrevious actions:\n{previous}"
    )


def test_the_system_prompt_is_the_agents_word_for_word() -> None:
    text = system_text()
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "f0aa74a3eb2b6a2f3caf83882e2e07c62b5087835adff04f9c7b6c4c2621795b"
    )
    tool = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])
    assert tool["function"]["name"] == "computer_use"
    assert "left_click_drag" in tool["function"]["parameters"]["properties"]["action"]["enum"]


def test_the_first_step() -> None:
    messages = build_messages(context(0))
    assert messages[0] == {"role": "system", "content": [{"type": "text", "text": system_text()}]}
    assert outline(messages) == [("user", "screen 0", task("None"))]


def test_older_steps_are_lines_of_the_task() -> None:
    assert outline(build_messages(context(4), history_images=3)) == [
        ("user", "screen 2", task("Step 1: Do 1.\nStep 2: Do 2.")),
        ("assistant", response(3)),
        ("user", "screen 3"),
        ("assistant", response(4)),
        ("user", "screen 4"),
    ]


def test_a_prompt_extends_the_one_before_while_the_oldest_screenshot_stays() -> None:
    for history, images in (("all", None), ("last_k", 5)):
        one, other = (build_messages(context(past), history=history, history_images=images) for past in (3, 4))
        assert other[: len(one)] == one


def test_steps_without_a_line() -> None:
    call = '<tool_call>{"name": "computer_use", "arguments": {"action": "left_click"}}</tool_call>'
    past = PromptContext("mute", screenshots=(b"a", b"b", b"c", b"d"), responses=(call, "nonsense", "action: Go."))
    assert outline(build_messages(past, history_images=1)) == [
        ("user", "d", task("Step 1: Performing left_click action\nStep 2: \nStep 3: Go."))
    ]


def test_texts_with_placeholders_are_text() -> None:
    past = PromptContext("type {instruction} {previous}", screenshots=(b"a",), plan="1. Go.")
    assert "Instruction: type {instruction} {previous}\n\n1. Go.\n\nPrevious" in outline(build_messages(past))[0][2]


def test_tokens_of_past_responses() -> None:
    past = PromptContext("mute", screenshots=(b"a", b"b"), responses=("x",), response_tokens=((7, 8),))
    assert build_messages(past)[2]["content"] == [{"type": "text", "text": "x", "tokens": (7, 8)}]
    broken = PromptContext("mute", screenshots=(b"a", b"b", b"c"), responses=("x", "y"), response_tokens=((7, 8),))
    with pytest.raises(ValueError, match="of all 2 responses or of none, got 1"):
        build_messages(broken)
