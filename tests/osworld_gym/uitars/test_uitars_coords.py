"""smart_resize against known sizes, and round trips of points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym import Action
from osworld_gym.uitars import ImageScaling, smart_resize

PIXELS = 28 * 28


@pytest.mark.parametrize(
    ("size", "max_pixels", "expected"),
    [
        ((1080, 1920), 16384 * PIXELS, (1092, 1932)),  # 38.57 -> 39 and 68.57 -> 69 cells
        ((1080, 1920), 1350 * PIXELS, (756, 1344)),  # known value of OSWorld's adapter
        ((720, 1280), 16384 * PIXELS, (728, 1288)),  # 25.7 -> 26, 45.7 -> 46
        ((28, 28), 16384 * PIXELS, (280, 280)),  # at least 100 cells: 10 x 10
        ((14, 2800), 16384 * PIXELS, (28, 2800)),  # at least one cell high: 1 x 100 cells, the minimum area
    ],
)
def test_known_sizes(size, max_pixels: int, expected) -> None:
    assert smart_resize(*size, 28, 100 * PIXELS, max_pixels) == expected


def test_adapters_known_point() -> None:
    x, y = ImageScaling().to_screen((960, 540), (1920, 1080))
    assert (round(x, 3), round(y, 3)) == (954.037, 534.066)


def test_small_screen_of_whole_cells_is_unchanged() -> None:
    scaling = ImageScaling(factor=16, min_pixels=0)
    assert scaling.model_size((128, 128)) == (128, 128)
    assert scaling.to_screen((72, 40), (128, 128)) == (72, 40)


def test_relative_points_by_hand() -> None:
    """Thousandths of each side, whatever the size of the resized image."""
    scaling = ImageScaling(factor=32, relative=1000)
    assert scaling.model_size((1920, 1080)) == (1920, 1088)
    assert scaling.to_screen((500, 250), (1920, 1080)) == (960, 270)
    assert scaling.to_model((960, 270), (1920, 1080)) == (500, 250)
    with pytest.raises(ValueError, match="relative >= 1 or None, got 0"):
        ImageScaling(relative=0)


@examples(100)
@given(
    st.tuples(st.integers(320, 3840), st.integers(240, 2160)),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([1350 * PIXELS, 16384 * PIXELS]),
)
def test_round_trip_through_integer_model_pixels_stays_within_one_cell_of_rounding(size, u, v, max_pixels) -> None:
    scaling = ImageScaling(max_pixels=max_pixels)
    point = (u * (size[0] - 1), v * (size[1] - 1))
    exact = scaling.to_screen(scaling.to_model(point, size), size)
    assert exact == pytest.approx(point, abs=1e-6)
    model = scaling.to_model(point, size)
    back = scaling.to_screen((round(model[0]), round(model[1])), size)
    w, h = scaling.model_size(size)
    limit = (max(1.0, 0.51 * size[0] / w), max(1.0, 0.51 * size[1] / h))  # one pixel unless the image shrinks by half
    assert abs(back[0] - point[0]) <= limit[0]
    assert abs(back[1] - point[1]) <= limit[1]


def test_all_fields_of_an_action_are_mapped() -> None:
    action = Action("drag", start=(1932, 1092), end=(0, 0))
    scaling = ImageScaling()
    assert scaling.action_to_screen(action, (1920, 1080)) == Action("drag", start=(1920, 1080), end=(0, 0))
    back = scaling.action_to_model(Action("click", start=(1920, 1080)), (1920, 1080))
    assert back == Action("click", start=(1932, 1092))
    wait = Action("wait")
    assert scaling.action_to_screen(wait, (1920, 1080)) is wait


@pytest.mark.parametrize("size", [(0, 5), (10, 3000)])
def test_impossible_sizes(size) -> None:
    with pytest.raises(ValueError, match="smart_resize requires"):
        smart_resize(*size, 28, 0, 10**9)


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match="min_pixels <= max_pixels"):
        ImageScaling(min_pixels=5, max_pixels=4)
