"""Still screens and PNG, on a framebuffer that the test writes: XWD format as in Xvfb, 100 × 60 pixels."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from osworld_gym.guest.process.processes import TIMER, WORK
from osworld_gym.guest.x11 import screen as screen_module
from osworld_gym.guest.x11.repeating_changes import CARET
from osworld_gym.guest.x11.screen import Screen, Workload

WIDTH, HEIGHT, HEADER, COLOURS = 100, 60, 160, 2


class Framebuffer:
    def __init__(self, path):
        fields = [0] * 25
        fields[0], fields[4], fields[5], fields[11], fields[12], fields[19] = HEADER, WIDTH, HEIGHT, 32, WIDTH * 4, 2
        path.write_bytes(struct.pack(">25I", *fields).ljust(HEADER + 12 * COLOURS, b"\0") + bytes(WIDTH * HEIGHT * 4))
        self.pixels = np.memmap(
            path, np.uint8, "r+", offset=HEADER + 12 * COLOURS, shape=(HEIGHT, WIDTH, 4)
        )  # blue, green, red, unused

    def paint(self, x, y, width, height, value):
        self.pixels[y : y + height, x : x + width, :3] = value


@pytest.fixture
def buffer(tmp_path):
    return Framebuffer(tmp_path / "screen")


def make(tmp_path, still_working=lambda: 0.0):
    return Screen(tmp_path / "screen", still_working)


class Clock:
    """The time of the screen's module: a sleep is over at once, and what was planned up to its end has happened."""

    def __init__(self):
        self.now, self.plan = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        while self.plan and self.plan[0][0] <= self.now:
            self.plan.pop(0)[1]()

    def drive(self, draw, seconds, interval=0.02):
        """``draw(i)`` every ``interval`` seconds for ``seconds``."""
        self.plan += [(i * interval, lambda i=i: draw(i)) for i in range(round(seconds / interval))]

    def elapsed(self, call):
        start = self.now
        result = call()
        return result, self.now - start


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(screen_module, "time", clock)
    return clock


def test_png_is_rgb(tmp_path, buffer):
    buffer.pixels[:, :, 2] = 200  # red
    buffer.pixels[3, 5] = (10, 20, 30, 0)
    image = np.asarray(Image.open(io.BytesIO(make(tmp_path).png())))
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert image[0, 0].tolist() == [200, 0, 0]
    assert image[3, 5].tolist() == [30, 20, 10]


@pytest.mark.usefixtures("buffer")
def test_a_still_screen_takes_the_quiet_time(tmp_path, clock):
    still, seconds = clock.elapsed(lambda: make(tmp_path).wait_still(0.1, 5.0))
    assert still
    assert 0.1 <= seconds < 1.0


def test_a_changing_screen_is_awaited(tmp_path, buffer, clock):
    screen = make(tmp_path)
    clock.drive(lambda i: buffer.paint(0, 0, 50, 50, i % 250 + 1), 0.5)
    still, seconds = clock.elapsed(lambda: screen.wait_still(0.15, 5.0))
    assert still
    assert 0.5 <= seconds < 2.0
    assert screen.changes >= 2


def test_a_screen_that_keeps_changing_ends_at_the_deadline(tmp_path, buffer, clock):
    screen = make(tmp_path)
    clock.drive(lambda i: buffer.paint(0, 0, 50, 50, i % 250 + 1), 1.0)
    still, seconds = clock.elapsed(lambda: screen.wait_still(0.3, 0.5))
    assert not still
    assert 0.5 <= seconds < 1.5


def test_a_blinking_caret_is_no_news(tmp_path, buffer, clock):
    screen = make(tmp_path)
    clock.drive(lambda i: buffer.paint(20, 5, *CARET, 255 * (i % 2)), 1.0)
    still, seconds = clock.elapsed(lambda: screen.wait_still(0.2, 5.0))
    assert still
    assert seconds < 0.8


@pytest.mark.usefixtures("buffer")
def test_a_process_at_work_holds_stillness_up_but_not_for_ever(tmp_path, clock):
    until = clock.now + 0.4
    still, seconds = clock.elapsed(lambda: make(tmp_path, lambda: WORK * (clock.now < until)).wait_still(0.1, 5.0))
    assert still
    assert 0.45 <= seconds < 1.0
    still, seconds = clock.elapsed(lambda: make(tmp_path, lambda: WORK).wait_still(0.1, 5.0))
    assert still
    assert 1.0 <= seconds < 2.0
    still, seconds = clock.elapsed(lambda: make(tmp_path, lambda: TIMER).wait_still(0.1, 5.0))
    assert still
    assert TIMER <= seconds < 1.0


def test_workload_lists_processes_now_and_then():
    asked = []
    workload = Workload(lambda: asked.append(1) or [1], lambda pids: sum(pids) / 2)
    assert workload() == 0.5
    assert workload() == 0.5
    assert len(asked) == 1


def test_a_new_window_is_awaited_until_it_is_drawn(tmp_path, buffer, clock):
    buffer.paint(0, 0, WIDTH, HEIGHT, 30)  # the wallpaper
    buffer.paint(10, 10, 50, 40, 200)  # a window without its content
    screen = make(tmp_path)
    late, seconds = clock.elapsed(lambda: screen.wait_painted((10, 10, 50, 40), 0.2))
    assert not late
    assert seconds >= 0.2
    clock.plan.append((clock.now + 0.2, lambda: buffer.paint(20, 20, 5, 5, 0)))
    drawn, seconds = clock.elapsed(lambda: screen.wait_painted((10, 10, 50, 40), 10.0))
    assert drawn
    assert 0.1 <= seconds < 5.0
    assert screen.wait_painted((-20, -20, 35, 35), 0.0), "wall and window are both in this box"
    assert not screen.wait_painted((WIDTH, 0, 50, 40), 10.0), "a box beside the screen is never drawn"
