"""Reads a policy's responses: thought, actions in screen pixels, the code they stand for, the text of each token."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bepa_torchrl.checkpoints import SHIPPED
from bepa_torchrl.sizing.known_models import KNOWN, ModelFiles, folder_model, known_model
from bepa_torchrl.viewer.episode import ShownAction, ShownStep
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.errors import ParseError
from osworld_gym.types import Action
from osworld_gym.uitars.coords import RELATIVE_COORDINATES, ImageScaling
from osworld_gym.uitars.pyautogui import to_pyautogui

_JOINED = 4  #: tokens that one character may have
_BOX = ("<|box_start|>", "<|box_end|>")


class ResponseReader:
    """Reads the responses of one policy.

    Args:
        action_text: a name of :data:`osworld_gym.action_text.ACTION_TEXTS`; an unknown one leaves responses unparsed.
        scaling: from the policy's coordinates to screen pixels; None: unknown, and points are not drawn.
        tokenizer: a ``tokenizers.Tokenizer``; None: tokens have no text.
    """

    def __init__(self, action_text: str = "uitars", scaling: ImageScaling | None = None, tokenizer: Any = None) -> None:
        self.protocol = ACTION_TEXTS.get(action_text)
        self.scaling, self.tokenizer = scaling, tokenizer
        self._texts: dict[tuple[int, ...], str] = {}

    def step(
        self, text: str, screenshot: Path | None, size: tuple[int, int] | None, line: Mapping[str, Any]
    ) -> ShownStep:
        """One step.

        Args:
            text: the response.
            screenshot: the file before it.
            size: (width, height) of the screen, pixels; None: unknown.
            line: the record's ``tokens``, ``log_probs``, ``old_log_probs``, ``new_log_probs`` and ``clipped``; each may
                be missing.
        """
        thought, action, actions, executed, note = self._parsed(text, size)
        return ShownStep(
            screenshot=screenshot,
            thought=thought,
            action=action,
            actions=actions,
            executed=executed,
            note=note,
            tokens=self.token_texts(line.get("tokens") or ()),
            log_probs=_numbers(line.get("log_probs")),
            old_log_probs=_numbers(line.get("old_log_probs")),
            ratios=_ratios(_numbers(line.get("new_log_probs")), _numbers(line.get("old_log_probs"))),
            clipped=None if line.get("clipped") is None else tuple(int(index) for index in line["clipped"]),
        )

    def _parsed(self, text: str, size: tuple[int, int] | None) -> tuple[str, str, tuple[ShownAction, ...], str, str]:
        """Thought, action as written, actions, code, and what could not be read."""
        if self.protocol is None:
            return "", text, (), "", "the action text of this policy is unknown"
        thought = self.protocol.thought_of(text)
        written = text.partition(thought)[2].strip() if thought else text
        try:
            actions = self.protocol.parse(text).actions
        except ParseError as error:
            return thought, _plain(written), (), "", f"not parsed: {error.reason}"
        if self.scaling is None or size is None:
            without_points = tuple(ShownAction(action.kind, text=_argument(action)) for action in actions)
            return thought, _plain(written), without_points, "", ""
        on_screen = [self.scaling.action_to_screen(action, size) for action in actions]
        return thought, _plain(written), shown_actions(on_screen), code_of(on_screen), ""

    def token_texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each token. Where several tokens are one character, the last of them has it."""
        if self.tokenizer is None:
            return ()
        texts, start = [], 0
        for end in range(1, len(ids) + 1):
            text = self._text_of(tuple(ids[start:end]))
            whole = not text.endswith("\ufffd") or end - start >= _JOINED or end == len(ids)
            texts.append(text if whole else "")
            start = end if whole else start
        return tuple(texts)

    def _text_of(self, ids: tuple[int, ...]) -> str:
        if ids not in self._texts:
            self._texts[ids] = str(self.tokenizer.decode(ids, skip_special_tokens=False))
        return self._texts[ids]


def reader_of(policy: Mapping[str, Any]) -> ResponseReader:
    """The reader of a run's ``policy`` settings. What the machine does not have, such as the tokenizer, is left out."""
    checkpoint, action_text = str(policy.get("checkpoint") or ""), str(policy.get("action_text") or "uitars")
    if not checkpoint:
        return ResponseReader(action_text)
    folder = SHIPPED[checkpoint][0] if checkpoint in SHIPPED else Path(checkpoint).expanduser()
    return ResponseReader(action_text, _scaling(checkpoint, folder), _tokenizer(checkpoint, folder))


def _scaling(checkpoint: str, folder: Path) -> ImageScaling | None:
    try:
        files = known_model(checkpoint) if checkpoint in KNOWN else folder_model(folder)
        return scaling_of(files)
    except (ValueError, KeyError, OSError):
        return None


def scaling_of(files: ModelFiles) -> ImageScaling:
    """The scaling of a model's coordinates. Raises KeyError if its configuration has no vision tower."""
    vision = files.config["vision_config"]
    factor = int(vision["patch_size"]) * int(vision["spatial_merge_size"])
    relative = RELATIVE_COORDINATES.get(str(files.config.get("model_type")))
    return ImageScaling(factor, files.min_pixels, files.max_pixels, relative)


def _tokenizer(checkpoint: str, folder: Path) -> Any:
    """The tokenizer of a folder, or of a repository in the local cache; None if there is none. Downloads nothing."""
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    path: Any = folder / "tokenizer.json"
    if not path.is_file() and checkpoint.count("/") == 1:
        path = try_to_load_from_cache(checkpoint, "tokenizer.json")
    if not isinstance(path, str | Path) or not Path(path).is_file():
        return None
    return Tokenizer.from_file(str(path))


def shown_actions(actions: Sequence[Action]) -> tuple[ShownAction, ...]:
    """Actions in screen pixels as the pages draw them."""
    return tuple(ShownAction(action.kind, action.start, action.end, _argument(action)) for action in actions)


def code_of(actions: Sequence[Action]) -> str:
    """The pyautogui code of actions in screen pixels without its imports; empty where a desktop does nothing."""
    try:
        code = to_pyautogui(actions)
    except ValueError as error:  # an action that a desktop does not have
        return f"({error})"
    return "\n".join(line for line in code.splitlines() if not line.startswith("import "))


def settings_of(path: Path) -> Mapping[str, Any]:
    """The settings in a run's ``config.yaml``; empty if it is missing or damaged."""
    import yaml

    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


def section_of(path: Path, name: str) -> Mapping[str, Any]:
    """A section of the settings in a run's ``config.yaml``; empty if it is missing or damaged."""
    section = settings_of(path).get(name)
    return section if isinstance(section, dict) else {}


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing, torn or something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _argument(action: Action) -> str:
    return action.key or action.content or action.direction or ""


def _plain(written: str) -> str:
    """An action without its heading and the tokens around points."""
    for token in _BOX:
        written = written.replace(token, "")
    return written.removeprefix("Action:").strip()


def _ratios(new: Sequence[float | None], old: Sequence[float | None]) -> tuple[float | None, ...]:
    """New to old probability of each token; empty if either is not recorded."""
    pairs = zip(new, old, strict=False)
    ratios = [None if a is None or b is None else round(math.exp(min(a - b, 50.0)), 6) for a, b in pairs]
    return tuple(ratios) if any(ratio is not None for ratio in ratios) else ()


def _numbers(values: Any) -> tuple[float | None, ...]:
    return tuple(None if value is None or not math.isfinite(value) else value for value in values or ())
