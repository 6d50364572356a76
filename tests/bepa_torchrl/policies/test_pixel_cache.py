"""Screenshots are decoded once while the cache holds them, by threads ahead of need, with equal patches."""

from __future__ import annotations

import copy
import io
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.base import ImagePrefetcher
from bepa_torchrl.policies.transformers.image_patches import ImagePatcher
from bepa_torchrl.policies.transformers.pixel_cache import PixelCache
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.testing import LampDesktop, ScriptedPolicy, lamp_task, picture, small_checkpoint
from osworld_gym.types import PromptContext
from osworld_gym.vector import DesktopVector

DEADLINE = 30.0  #: seconds until a test that waits in vain fails
SIZE = 4 * 4 * 3


def made(data: bytes) -> Any:
    return np.full((4, 4, 3), data[0], np.uint8)


def size_of(_: bytes) -> int:
    return SIZE


def png(size: tuple[int, int], seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


class Decoding:
    """Counts the images that are decoded, each by its content; ``go`` holds them up."""

    def __init__(self, *, go: bool = True) -> None:
        self.counts: Counter[bytes] = Counter()
        self.threads: set[str] = set()
        self.go = threading.Event()
        if go:
            self.go.set()

    def __call__(self, data: bytes) -> Any:
        assert self.go.wait(DEADLINE)
        self.counts[data] += 1
        self.threads.add(threading.current_thread().name)
        return made(data)


def test_an_image_is_made_once_while_it_is_kept() -> None:
    cache, decoding = PixelCache(2 * (SIZE + 1), 0), Decoding()
    for name in (b"a", b"b", b"a", b"c", b"a", b"b"):  # b is dropped for c, and c for b
        assert cache.get(name, decoding)[0, 0, 0] == name[0]
    assert decoding.counts == {b"a": 1, b"b": 2, b"c": 1}
    assert (cache.made, cache.waited) == (4, 4)


def test_nothing_is_kept_without_a_capacity() -> None:
    cache, decoding = PixelCache(0, 2), Decoding()
    cache.prefetch([b"a"], decoding, size_of)
    assert cache.get(b"a", decoding) is not cache.get(b"a", decoding)
    assert decoding.counts == {b"a": 2}


def test_threads_make_images_ahead_of_need() -> None:
    cache, decoding = PixelCache(1_000, 2), Decoding(go=False)
    cache.prefetch([b"a", b"b", b"a"], decoding, size_of)
    cache.prefetch([b"b"], decoding, size_of)  # under way
    decoding.go.set()
    assert [cache.get(name, decoding)[0, 0, 0] for name in (b"a", b"b")] == [97, 98]
    assert decoding.counts == {b"a": 1, b"b": 1}
    assert all(name.startswith("pixels") for name in decoding.threads)


def test_no_more_is_prefetched_than_the_cache_holds() -> None:
    """Otherwise the first would be dropped before it is needed."""
    cache, decoding = PixelCache(2 * (SIZE + 1), 1), Decoding()
    cache.prefetch([b"a", b"b", b"c", b"d"], decoding, size_of)
    for name in (b"a", b"b"):
        cache.get(name, decoding)
    assert decoding.counts == {b"a": 1, b"b": 1}


def test_a_broken_image_is_an_error_where_it_is_needed() -> None:
    def fails(_: bytes) -> Any:
        raise OSError("truncated")

    cache = PixelCache(1_000, 1)
    cache.prefetch([b"a"], fails, size_of)
    with pytest.raises(OSError, match="truncated"):
        cache.get(b"a", fails)
    assert cache.get(b"a", made)[0, 0, 0] == 97  # and is tried again

    def no_size(_: bytes) -> int:
        raise OSError("no image")

    cache.prefetch([b"b"], made, no_size)


def test_many_threads_share_a_cache() -> None:
    cache, decoding, wrong = PixelCache(3 * (SIZE + 1), 2), Decoding(), []
    names = [bytes([65 + n]) for n in range(6)]

    def use(start: int) -> None:
        for n in range(60):
            name = names[(start + n) % 6]
            cache.prefetch([name], decoding, size_of)
            if cache.get(name, decoding)[0, 0, 0] != name[0]:
                wrong.append(name)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_copy_is_empty() -> None:
    cache = PixelCache(1_000, 3)
    cache.get(b"a", made)
    other = copy.deepcopy(cache)
    assert (other.capacity_bytes, other.threads, other.made) == (1_000, 3, 0)


# --- patches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(128, 128), (100, 75), (333, 222)])
def test_patches_on_a_device_are_looked_up_there(size: tuple[int, int]) -> None:
    """The look-up runs on the CPU here; only the pixels, one byte each, would be sent."""
    patcher = ImagePatcher(small_checkpoint().image_processor)
    data = png(size)
    expected = patcher.patches(data)
    found = patcher.lookup_on(torch.tensor(patcher.pixels(data)))
    assert np.array_equal(found.numpy(), expected)
    assert np.array_equal(patcher.patches_on(data, torch.device("cpu")).numpy(), expected)
    assert patcher.pixels(data).nbytes * 8 == expected.nbytes


def test_pixels_cannot_be_changed() -> None:
    patcher = ImagePatcher(small_checkpoint().image_processor, PixelCache(1 << 20, 0))
    with pytest.raises(ValueError, match="read-only"):
        patcher.pixels(png((64, 64)))[0] = 0


# --- a policy -------------------------------------------------------------------------------------------------------


def make_policy(**options: Any) -> TransformersPolicy:
    return TransformersPolicy(small_checkpoint(spread=0.1), preset="paper", max_new_tokens=3, **options)


def test_an_episode_decodes_each_screenshot_once() -> None:
    """A trained tower encodes every image again at every turn and in the update; none is decoded again."""
    results = {}
    for gigabytes, threads in ((0.0, 0), (0.1, 0), (0.1, 2)):
        policy = make_policy(image_cache_gb=gigabytes, image_threads=threads)
        sampled: list[Any] = []
        prompts: list[Prompt] = []
        for step in range(1, 4):
            context = PromptContext("mute", [picture(n) for n in range(step)], ["Action: wait()"] * (step - 1))
            prompts = [prompt for prompt in policy.render([context]) if prompt is not None]
            sampled += policy.sample(prompts, [(0, step)])
        log_probs, _ = policy.response_log_probs(prompts, [sampled[-1].tokens])
        results[gigabytes, threads] = [*(response.tokens for response in sampled), log_probs[0].detach()]
        cache = policy.renderer.processor.patcher.cache
        assert cache.made == (1 + 2 + 3 + 3 if gigabytes == 0 else 3)
    for found in results.values():
        assert all(torch.equal(a, b) for a, b in zip(found, results[0.0, 0], strict=True))


class BlockingLamp(LampDesktop):
    blocking = True


class PrefetchingPolicy(ScriptedPolicy):
    """A scripted policy that records what it is asked to prefetch, and by which threads."""

    def __init__(self) -> None:
        super().__init__(lambda _: True)
        self.prefetched: list[bytes] = []
        self.threads: set[str] = set()

    def prefetch(self, images: Any) -> None:
        self.prefetched.extend(images)
        self.threads.add(threading.current_thread().name)


def test_a_screenshot_is_prefetched_by_its_desktops_thread() -> None:
    policy = PrefetchingPolicy()
    assert isinstance(policy.renderer, ImagePrefetcher)
    with DesktopVector(BlockingLamp, 2) as vector:
        results = run_episodes(policy, vector, [EpisodeJob(lamp_task(n), (0, 0, n, 0), 7) for n in range(3)])
        assert vector.on_screenshot is None
    assert all(result.success for result in results)
    seen = [context.screenshots[-1] for context in policy.rendered]
    assert sorted(policy.prefetched) == sorted(seen)
    assert all(name.startswith("desktop-") for name in policy.threads)
