"""Which screenshots are in the prompt, by hand."""

from __future__ import annotations

import pytest

from osworld_gym.types import PromptContext
from osworld_gym.uitars.history import check_history, first_image
from osworld_gym.uitars.prompt import build_messages


@pytest.mark.parametrize(
    ("history", "images", "expected"),
    [
        ("all", None, [0, 0, 0, 0, 0, 0, 0, 0]),
        ("last_k", 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("last_k", 3, [0, 0, 0, 1, 2, 3, 4, 5]),
        ("evict_block", 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("evict_block", 2, [0, 0, 0, 2, 2, 4, 4, 6]),
        ("evict_block", 3, [0, 0, 0, 0, 0, 3, 3, 3]),
    ],
)
def test_the_oldest_screenshot_by_hand(history: str, images: int | None, expected: list[int]) -> None:
    assert [first_image(count, history, images) for count in range(1, 9)] == expected


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_evicted_blocks_keep_k_to_2k_minus_1_screenshots(k: int) -> None:
    kept = [count - first_image(count, "evict_block", k) for count in range(1, 40)]
    assert kept[:k] == list(range(1, k + 1))
    assert set(kept[k:]) <= set(range(k, 2 * k))


def test_all_responses_stay_when_screenshots_go() -> None:
    context = PromptContext("mute", [b"p0", b"p1", b"p2", b"p3"], ["r0", "r1", "r2"])
    messages = build_messages(context, history="evict_block", history_images=2)
    parts = [part for message in messages[1:] for part in message["content"]]
    assert [part.get("text") or part["image"] for part in parts] == ["r0", "r1", b"p2", "r2", b"p3"]


@pytest.mark.parametrize(
    ("history", "images", "message"),
    [
        ("some", None, "history must be one of all, evict_block, last_k; got 'some'"),
        ("all", 5, "history=all shows every screenshot and has no history_images, got 5; use history=last_k"),
        ("last_k", None, "history=last_k requires history_images of at least 1"),
        ("evict_block", 0, "history=evict_block requires history_images of at least 1"),
    ],
)
def test_wrong_histories_are_named(history: str, images: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_messages(PromptContext("mute", [b"p0"]), history=history, history_images=images)


def test_a_prompt_without_a_history_accepts_no_other() -> None:
    check_history("last_k", 1, preset="compact")
    for history, images in (("all", None), ("all", 1), ("last_k", 2), ("evict_block", 1)):
        with pytest.raises(ValueError, match=rf"compact shows the current .* got {history} and {images}; set them so"):
            check_history(history, images, preset="compact")
