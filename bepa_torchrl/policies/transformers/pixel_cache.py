"""Decoded, resized screenshots: kept by their content while they fit, and made ahead of need by a pool of threads.

A screenshot is in every later prompt of its episode, and in the update. Its pixels take an eighth of the memory of its
patches (one byte per value instead of four, and no repeated frame): 6.3 MB for 1920x1080. PIL decodes and resizes
outside of Python's lock, so that threads do it while the desktops, the sampler or the GPU are busy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  #: ``[H, W, 3]``


class PixelCache:
    """Pixels by PNG bytes; the least recently used are dropped. Several threads may use it.

    Args:
        capacity_bytes: maximum size of kept pixels and their PNGs; 0: nothing is kept.
        threads: threads that :meth:`prefetch` starts; 0: it does nothing.
    """

    def __init__(self, capacity_bytes: int, threads: int) -> None:
        self.capacity_bytes, self.threads = capacity_bytes, threads
        self.made = 0  #: images that were decoded
        self.waited = 0  #: of those, by or while waited for by the caller of :meth:`get`
        self._kept: OrderedDict[bytes, Pixels] = OrderedDict()
        self._bytes = 0
        self._pending: dict[bytes, Future[Pixels]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PixelCache:
        """An empty cache of the same size, since a copy has threads of its own."""
        return PixelCache(self.capacity_bytes, self.threads)

    def __reduce__(self) -> tuple[Any, ...]:
        return PixelCache, (self.capacity_bytes, self.threads)

    def get(self, data: bytes, make: Callable[[bytes], Pixels]) -> Pixels:
        """The pixels of an image, read-only; made here if they are neither kept nor under way.

        Raises:
            Exception: what ``make`` raises.
        """
        with self._lock:
            kept = self._kept.get(data)
            if kept is not None:
                self._kept.move_to_end(data)
                return kept
            pending = self._pending.get(data)
            self.waited += pending is None or not pending.done()
        return self._make(data, make) if pending is None else pending.result()

    def prefetch(self, images: Iterable[bytes], make: Callable[[bytes], Pixels], size: Callable[[bytes], int]) -> None:
        """Lets threads make what is missing of images that are needed soon, as far as the cache holds them together.

        An image that cannot be made is not an error here, but where it is needed.

        Args:
            images: PNG bytes, the first needed first.
            make: PNG bytes → pixels.
            size: PNG bytes → size of the pixels in bytes, without decoding.
        """
        if not self.threads:
            return
        room = self.capacity_bytes
        with self._lock:
            for data in dict.fromkeys(images):
                try:
                    room -= size(data) + len(data)
                except (OSError, ValueError):
                    continue
                if room < 0:
                    return
                if data in self._kept:
                    self._kept.move_to_end(data)
                elif data not in self._pending:
                    if self._pool is None:
                        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="pixels")
                    self._pending[data] = self._pool.submit(self._make, data, make)

    def _make(self, data: bytes, make: Callable[[bytes], Pixels]) -> Pixels:
        try:
            pixels = make(data)
            pixels.flags.writeable = False
        except BaseException:
            with self._lock:
                self._pending.pop(data, None)
            raise
        with self._lock:
            self.made += 1
            self._pending.pop(data, None)
            if data not in self._kept:
                self._kept[data] = pixels
                self._bytes += len(data) + pixels.nbytes
            while self._bytes > self.capacity_bytes:
                old, dropped = self._kept.popitem(last=False)
                self._bytes -= len(old) + dropped.nbytes
        return pixels
