"""Carets, block cursors and clocks are not new content; spinners, words and two regions at once are. Drawn frames."""

from __future__ import annotations

import itertools

import pytest
from PIL import Image, ImageDraw

from osworld_gym.guest.x11.repeating_changes import RepeatingChanges

SIZE = (640, 360)


def frame(*boxes: tuple[int, int, int, int, int]) -> Image.Image:
    """A black frame with grey boxes (left, top, width, height, value)."""
    image = Image.new("RGB", SIZE)
    for left, top, width, height, value in boxes:
        image.paste((value, value, value), (left, top, left + width, top + height))
    return image


def news(frames: list[Image.Image], every: float, start: float = 100.0) -> list[bool]:
    """Whether each change between successive frames is new content; one frame every ``every`` seconds."""
    changes = RepeatingChanges()
    pairs = enumerate(itertools.pairwise(frames))
    return [changes.is_new(before, after, start + i * every) for i, (before, after) in pairs]


EMPTY = frame()


def test_a_caret_is_no_news_from_the_first() -> None:
    assert news([EMPTY, frame((20, 20, 2, 40, 255)), EMPTY, frame((20, 20, 2, 40, 255))], 0.5) == [False] * 3


def test_a_block_cursor_is_news_once() -> None:
    block = frame((20, 20, 11, 22, 255))
    assert news([EMPTY, block] * 4, 0.5) == [True] + [False] * 6


def test_one_that_comes_back_late_is_news_again() -> None:
    block = frame((20, 20, 11, 22, 255))
    assert news([EMPTY, block] * 2, 5.0) == [True] * 3


def test_a_clock_is_news_once() -> None:
    ticks = [frame((500, 5, 120, 16, value)) for value in (10, 20, 30, 40, 50)]
    assert news(ticks, 1.0) == [True, False, False, False]
    assert news(ticks, 0.2) == [True] * 4  # too fast for a clock


def test_a_spinner_is_news_for_as_long_as_it_turns() -> None:
    turns = [frame((300, 200, 30, 30, value)) for value in (10, 60, 110, 160)] * 3
    assert news(turns, 0.1) == [True] * 11


def outline(value: int, inside: int = 0, left: int = 100) -> Image.Image:
    """The frame of a text box, 7 pixels wide."""
    return frame((left, 100, 400, 70, value), (left + 7, 107, 386, 56, inside))


def test_the_frame_of_a_selection_is_news_once() -> None:
    turning = [outline(value) for value in (50, 100, 150, 200, 250)]
    assert news(turning, 0.5) == [True, False, False, False]
    assert news(turning, 5.0) == [True] * 4
    assert news([outline(50, left=left) for left in (100, 110, 120)], 0.5) == [True] * 2  # it moves
    assert news([outline(value, inside=value + 5) for value in (50, 100, 150)], 0.5) == [True] * 2


def test_a_ring_that_turns_is_news() -> None:
    def ring(value: int) -> Image.Image:
        image = Image.new("RGB", SIZE)
        ImageDraw.Draw(image).ellipse((300, 200, 347, 247), outline=(value, value, value), width=4)
        return image

    assert news([ring(value) for value in (50, 100, 150, 200)], 0.1) == [True] * 3


def test_a_large_place_that_flips_is_news() -> None:
    page = frame((0, 0, 400, 300, 200))
    assert news([EMPTY, page] * 3, 0.5) == [True] * 5


def test_regions_are_kept_separate() -> None:
    caret, block = (20, 20, 2, 20, 255), (600, 300, 11, 22, 255)
    both = [EMPTY, frame(caret, block)] * 3
    assert news(both, 0.5) == [True] + [False] * 4  # their common box would be as large as the screen
    words = [frame(caret), frame((300, 100, 80, 15, 90)), frame(caret), frame((300, 130, 80, 15, 90))]
    assert news(words, 0.5) == [True] * 3


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_one_step_of_one_colour_in_one_pixel_of_a_place_counts(channel: int) -> None:
    image = EMPTY.copy()
    colour = [0, 0, 0]
    colour[channel] = 1
    image.putpixel((5, 5), tuple(colour))
    image.putpixel((300, 300), tuple(colour))
    changes = RepeatingChanges()
    assert not changes.is_new(EMPTY, image, 1.0)  # two regions as small as a caret
    image.paste((0, 0, 1), (100, 100, 180, 101))
    assert changes.is_new(EMPTY, image, 2.0)


def test_no_change_is_no_news() -> None:
    assert news([EMPTY, EMPTY.copy()], 1.0) == [False]


def test_the_corner_of_the_screen_is_seen() -> None:
    assert news([EMPTY, frame((600, 355, 40, 5, 9))], 1.0) == [True]


def test_many_places_are_news() -> None:
    dots = frame(*((x, y, 1, 1, 255) for x in range(0, 640, 16) for y in range(0, 360, 16)))
    assert news([EMPTY, dots, EMPTY], 0.5) == [True, True]
