"""Recognises screen changes that repeat endlessly and show nothing new: a blinking caret, a block cursor, a clock.

The difference of two frames is divided into regions. A region shows nothing new if it

- is as small as a caret, or
- is small and looks as it did two changes before, within a short time: it blinks, or
- is small and changes about once a second, from the second change on: it ticks, or
- changed only at its border, from the second change on, within a short time: the moving dashes of a selection frame.

Every other change (a loading page, a spinner, a video) is new content for as long as it lasts. docs/stillness.md
explains each rule and the measurements behind it.
"""

from __future__ import annotations

from PIL import Image, ImageChops

Box = tuple[int, int, int, int]  # left, top, right, bottom, pixels

CARET = (4, 48)  # pixels (width, height)
BLINKING = (64, 64)  # pixels (width, height): a cursor, not an animation
TICKING = (240, 48)  # pixels (width, height): a clock, not a page
BLINK = 2.5  # seconds within which a blinking region looks as it did before
TICK = (0.8, 1.3)  # seconds between two ticks of a clock
BORDER = 12  # pixels: width of a frame whose dashes move
EDGE, STRAIGHT = 2, 0.6  # a frame changes within 2 pixels of each edge over 0.6 of its length; a spinner does not
CELL = 16  # pixels: changes nearer than that are one region
MANY = 400  # with more changed cells than this, the change is new content without further analysis
KEPT = 64  # regions remembered


class _Region:
    """The pixels of a region before its last change, and the time of that change."""

    __slots__ = ("at", "box", "earlier")

    def __init__(self, box: Box, earlier: bytes, at: float) -> None:
        self.box, self.earlier, self.at = box, earlier, at


class RepeatingChanges:
    """Remembers small regions that changed, to recognise them when they change again."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def is_new(self, before: Image.Image, after: Image.Image, now: float) -> bool:
        """Whether two RGB frames differ by more than repeating changes; ``now``: seconds, monotonic."""
        difference = ImageChops.difference(before, after)
        whole = difference.getbbox()
        if whole is None or _within(whole, CARET):
            return False
        regions = _regions(_changed(difference.crop(whole)), whole[0], whole[1])
        if regions is None:
            return True
        repeating = [
            self._repeats(before, after, box, now) for box in regions
        ]  # all of them, so that each is remembered
        return not all(repeating)

    def _repeats(self, before: Image.Image, after: Image.Image, box: Box, now: float) -> bool:
        if _within(box, CARET):
            return True
        turns = _is_frame(before, after, box)
        if not turns and not _within(box, TICKING) and not _within(box, BLINKING):
            return False
        seen = next((region for region in self._regions if _overlap(region.box, box)), None)
        if seen is None:
            self._regions = [_Region(box, before.crop(box).tobytes(), now), *self._regions[: KEPT - 1]]
            return False
        since = now - seen.at
        again = seen.box == box and since <= BLINK
        blinks = again and after.crop(box).tobytes() == seen.earlier
        ticks = TICK[0] <= since <= TICK[1]
        seen.box, seen.earlier, seen.at = box, before.crop(box).tobytes(), now
        return (blinks and _within(box, BLINKING)) or (ticks and _within(box, TICKING)) or (turns and again)


def _within(box: Box, size: tuple[int, int]) -> bool:
    return box[2] - box[0] <= size[0] and box[3] - box[1] <= size[1]


def _is_frame(before: Image.Image, after: Image.Image, box: Box) -> bool:
    """Whether two frames differ along the straight edges of the box and not inside it.

    Part of the box may be hidden by another window.
    """
    left, top, right, bottom = box
    inner = (left + BORDER, top + BORDER, right - BORDER, bottom - BORDER)
    if inner[0] >= inner[2] or inner[1] >= inner[3] or _difference(before, after, inner) is not None:
        return False
    horizontal = [_difference(before, after, (left, y, right, y + EDGE)) for y in (top, bottom - EDGE)]
    vertical = [_difference(before, after, (x, top, x + EDGE, bottom)) for x in (left, right - EDGE)]
    widths = [part[2] - part[0] for part in horizontal if part is not None]
    heights = [part[3] - part[1] for part in vertical if part is not None]
    return max(widths) >= STRAIGHT * (right - left) and max(heights) >= STRAIGHT * (bottom - top)


def _difference(before: Image.Image, after: Image.Image, box: Box) -> Box | None:
    """Bounding box of the difference within ``box``, relative to its top left corner; None if there is none."""
    return ImageChops.difference(before.crop(box), after.crop(box)).getbbox()


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _changed(difference: Image.Image) -> Image.Image:
    """255 where a difference of two RGB images is not zero, in any colour."""
    red, green, blue = difference.split()
    return ImageChops.lighter(ImageChops.lighter(red, green), blue).point([0] + [255] * 255)


def _regions(changed: Image.Image, left: int, top: int) -> list[Box] | None:
    """Boxes of the changed pixels (255), nearby ones merged, shifted by ``left`` and ``top``; None if too many."""
    width, height = -(-changed.width // CELL), -(-changed.height // CELL)
    padded = Image.new("L", (width * CELL, height * CELL))
    padded.paste(changed)
    cells = padded.reduce(CELL).tobytes()  # the mean of one 255 in 256 pixels is 1
    todo = {i for i, value in enumerate(cells) if value}
    if len(todo) > MANY:
        return None
    out = []
    while todo:
        group, queue = set(), [todo.pop()]
        while queue:
            here = queue.pop()
            group.add(here)
            x, y = here % width, here // width
            near = {ny * width + nx for nx in (x - 1, x, x + 1) for ny in (y - 1, y, y + 1) if 0 <= nx < width} & todo
            queue += near
            todo -= near
        box = _tight(padded, group, width)
        out.append((left + box[0], top + box[1], left + box[2], top + box[3]))
    return out


def _tight(changed: Image.Image, cells: set[int], width: int) -> Box:
    """The exact bounding box of the changed pixels in these cells."""
    columns, rows = [i % width for i in cells], [i // width for i in cells]
    x, y = min(columns) * CELL, min(rows) * CELL
    inner = changed.crop((x, y, (max(columns) + 1) * CELL, (max(rows) + 1) * CELL)).getbbox()
    assert inner is not None
    return x + inner[0], y + inner[1], x + inner[2], y + inner[3]
