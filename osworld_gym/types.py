"""Data types shared by all parts: screenshot, action, step result, stop reason, verdict and prompt context."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from osworld_gym.errors import FailureReason

Point = tuple[float, float]

#: the n-th ``call_user()`` of an episode ends it (OSWorld's UI-TARS agent gives up at the 4th)
CALL_USER_TOLERANCE = 3
MAX_WHEEL_CLICKS = 1000  #: of one scroll; longer than any list
MAX_PNG_BYTES, SPARE_PNG_BYTES = 4, 1 << 20  # of a frame: per pixel, and in addition
#: what Pillow raises for a PNG that is broken; the chunks that it reads have many forms
_UNDECODABLE = (OSError, SyntaxError, ValueError, LookupError, TypeError, EOFError, struct.error, zlib.error)


class StopReason(StrEnum):
    """Why an episode ended. All but ``env_error`` have a valid reward."""

    finished = "finished"  #: the policy's ``finished`` action
    max_steps = "max_steps"  #: the step limit was reached
    call_user = "call_user"  #: ``call_user()`` reached its limit: OSWorld's FAIL
    parse_error = "parse_error"  #: too many unparsable responses in a row
    context_full = "context_full"  #: the prompt no longer fits the model's context
    crashed_desktop = "crashed_desktop"  #: the policy's actions terminated the desktop, twice in the same way: reward 0
    env_error = "env_error"  #: the infrastructure failed: the row is masked, its reward is not valid


class Screenshot:
    """One frame, as pixels or as PNG bytes; the other form is computed on first use and cached.

    Args:
        pixels: uint8 ``[H, W, 3]``, RGB; must not be modified afterwards.
        png: the same frame as PNG bytes.

    Raises:
        ValueError: neither of the two is given.
    """

    __slots__ = ("_pixels", "_png")

    def __init__(self, pixels: NDArray[np.uint8] | None = None, png: bytes | None = None) -> None:
        if pixels is None and png is None:
            raise ValueError("Screenshot requires pixels or PNG bytes, got neither")
        self._pixels = pixels
        self._png = png

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """uint8 ``[H, W, 3]``, RGB.

        Raises:
            ValueError: as :meth:`check`.
        """
        if self._pixels is None:
            assert self._png is not None
            self._pixels = np.asarray(_decoded(self._png, self.size))
        return self._pixels

    def check(self) -> None:
        """Decodes PNG bytes and drops the pixels: what a desktop has sent must not fail in the program that trains.

        Raises:
            ValueError: they are not a picture of :attr:`size`, or many times as long as one.
        """
        if self._pixels is None:
            assert self._png is not None
            _decoded(self._png, self.size)

    @property
    def png(self) -> bytes:
        """PNG bytes, zlib level 1 (the fastest that still compresses a desktop well)."""
        if self._png is None:
            buffer = io.BytesIO()
            Image.fromarray(self.pixels).save(buffer, format="PNG", compress_level=1)
            self._png = buffer.getvalue()
        return self._png

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels; for PNG bytes read from the header, without decoding.

        Raises:
            ValueError: the PNG bytes are empty, truncated (no end chunk) or not a PNG.
        """
        if self._pixels is not None:
            return self._pixels.shape[1], self._pixels.shape[0]
        png = self._png or b""
        if not png.startswith(b"\x89PNG\r\n\x1a\n") or png[-8:-4] != b"IEND":
            raise ValueError(f"expected a complete PNG, got {len(png)} bytes that begin with {png[:8]!r}")
        return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


def _decoded(png: bytes, size: tuple[int, int]) -> Image.Image:
    """The RGB picture of a PNG of ``size`` (width, height). Raises ValueError if it is something else."""
    most = MAX_PNG_BYTES * size[0] * size[1] + SPARE_PNG_BYTES
    if len(png) > most:
        raise ValueError(f"expected a PNG of {size} pixels to have at most {most} bytes, got {len(png)}")
    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
            if (found := image.size) == size:
                image.load()
                return image if image.mode == "RGB" else image.convert("RGB")
    except (*_UNDECODABLE, Image.DecompressionBombError) as error:
        raise ValueError(f"expected a PNG of {size} pixels, got one that cannot be decoded: {error}") from error
    raise ValueError(f"expected a PNG of {size} pixels, as its first header says, got one of {found} by another")


@dataclass(frozen=True, slots=True)
class Action:
    r"""One action as data. Unused arguments are None.

    ``kind`` is a name of ``osworld_gym.uitars.actions.ACTIONS``, or ``middle_single``, a click of the middle button,
    which UI-TARS does not have. ``start`` and ``end`` are (x, y): in pixels of the
    image that the model saw when they come from the parser, in pixels of the screen when they reach a desktop.
    A line end in the content of ``type`` is ``\n``: ``\r\n`` and ``\r`` become that, so that each is one Enter.
    A click, drag or scroll without ``start`` begins where the pointer is.

    Raises:
        ValueError: ``clicks`` is not in 0..``MAX_WHEEL_CLICKS``.
    """

    kind: str
    start: Point | None = None
    end: Point | None = None
    key: str | None = None  #: hotkey, keydown, keyup: names separated by spaces, as in ``ctrl shift t``
    content: str | None = None  #: type, finished, open_app
    direction: str | None = None  #: scroll: up, down, left, right
    clicks: int | None = None  #: scroll: wheel clicks; None: those of one scroll of UI-TARS (``SCROLL_CLICKS``)

    def __post_init__(self) -> None:
        if self.clicks is not None and not 0 <= self.clicks <= MAX_WHEEL_CLICKS:
            raise ValueError(f"Action.clicks: expected 0..{MAX_WHEEL_CLICKS} or None, got {self.clicks}")
        if self.kind == "type" and self.content and "\r" in self.content:
            object.__setattr__(self, "content", self.content.replace("\r\n", "\n").replace("\r", "\n"))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command run in the desktop: exit status, standard output and standard error."""

    returncode: int
    output: str
    error: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's result for a finished episode. ``success`` is ``score == 1`` (paper, section 3).

    A judge's verdict names it: it is an opinion of a language model, which can be wrong, and be gamed.

    Args:
        score: the reward, in [0, 1].
        problem: the reason, if the score is 0 because a result could not be read; else empty.
        exhausted: the problem is that the result exceeds a limit of the evaluators (size, memory, time).
        judge: the judge whose opinion the score is; empty: a verifier's result.
    """

    score: float
    problem: str = ""
    exhausted: bool = False
    judge: str = ""

    @property
    def success(self) -> bool:
        return self.score == 1.0


@dataclass(frozen=True, slots=True)
class PromptContext:
    """Everything that the prompt of one step may contain, at step t = 0, 1, ….

    Args:
        instruction: the task's instruction, without the plan.
        screenshots: PNG bytes of every screenshot so far, the current one last (length t + 1).
        responses: the policy's previous responses, oldest first (length t).
        plan: the expert's plan (LEVEL-1) or None.
        response_tokens: token ids of the previous responses, exactly as sampled, end token included (length t); empty:
            unknown, so that prompts encode the texts.
    """

    instruction: str
    screenshots: Sequence[bytes]
    responses: Sequence[str] = ()
    plan: str | None = None
    response_tokens: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one response, or of a reset.

    Args:
        screenshot: the frame after the step; after ``env_error`` the last good one.
        stop: why the episode ended; None while it is running.
        verdict: the verifier's result once the episode has ended; None before, on ``env_error``, and of an episode that
            is judged later.
        failure: the reason of an ``env_error``; None otherwise.
        actions: the parsed actions in screen pixels; empty if the response could not be parsed.
        parse_error: reason of the ParseError, or None.
        info: diagnostics, e.g. seconds by phase (``begin_s``, ``step_s``, ``verify_s``), and the message of a failure
            (``failure``).
    """

    screenshot: Screenshot
    stop: StopReason | None = None
    verdict: Verdict | None = None
    failure: FailureReason | None = None
    actions: tuple[Action, ...] = ()
    parse_error: str | None = None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.stop is not None

    @property
    def reward(self) -> float:
        """1.0 for a verified success, else 0.0. A masked row (``env_error``) must not be read as a failure."""
        return 1.0 if self.verdict is not None and self.verdict.success else 0.0
