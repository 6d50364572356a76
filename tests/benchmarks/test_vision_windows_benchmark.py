"""The benchmark of batched windows counts what its page says, and compares equal computations."""

from __future__ import annotations

from benchmarks.vision_windows import GRID, NARROW, kernel_calls, measured, tower
from bepa_torchrl.policies.transformers.window_attention import batch_windows


def test_a_screenshot_takes_5044_calls_one_by_one_and_116_batched() -> None:
    before, after = tower(**NARROW), tower(**NARROW)
    batch_windows(after)
    assert (kernel_calls(before, GRID), kernel_calls(after, GRID)) == (5_044, 116)


def test_more_screenshots_of_a_size_take_no_further_calls() -> None:
    after = tower(**NARROW | {"depth": 2, "fullatt_block_indexes": [1]})
    batch_windows(after)
    assert kernel_calls(after, GRID, images=3) == kernel_calls(after, GRID) == 5


def test_both_ways_are_timed_on_equal_results() -> None:
    found = measured(1, (1, 10, 20), hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=24)
    assert found["one by one"] > 0
    assert found["batched"] > 0
    assert found["largest difference"] < 1e-5
