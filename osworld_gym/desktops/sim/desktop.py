"""SimDesktop: the simulated provider. Runs in process, without programs; fully determined by the seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.sim.applications import CATALOGUE, FILES, TOGGLE, TRASH, Catalogue, shuffled
from osworld_gym.desktops.sim.draw import TILE, Look, paint
from osworld_gym.desktops.sim.keyboard import UNUSED_KEYS, hotkey, type_text
from osworld_gym.desktops.sim.layout import MIN_COLUMNS, MIN_ROWS, Layout, Place
from osworld_gym.desktops.sim.pointer import double_click, drag, left_click, right_click, scroll
from osworld_gym.desktops.sim.scene import Element, Scene, build_scene
from osworld_gym.desktops.sim.state import SimState
from osworld_gym.errors import TaskError
from osworld_gym.guest.pixels import pixel_inside
from osworld_gym.types import Action, CommandResult, Point, Screenshot
from osworld_gym.uitars.keys import MODIFIERS
from osworld_gym.uitars.read_pyautogui import scrolls

STATE_FILE = "/state.json"
_SETUP_KEYS = ("settings", "trash", "open")
_IDLE = ("finished", "call_user")


class SimDesktop(Desktop):
    """A desktop that is simulated, drawn and verified in process; it has no shell.

    Args:
        tiles: the screen in tiles of 16 pixels, (columns, rows), at least (8, 8).
        popup_probability: probability of a pop-up after each :meth:`perform`, 0..1.
        shuffle_labels: permute all names by the seed (see ``applications.shuffled``), so that only the screen shows
            where a setting is.
        seed: seed of the desktop before the first :meth:`reset`.

    Raises:
        ValueError: ``tiles`` or ``popup_probability`` is out of range.
    """

    has_shell = False
    unused_keys = UNUSED_KEYS
    blocking = False

    def __init__(
        self,
        tiles: tuple[int, int] = (MIN_COLUMNS, MIN_ROWS),
        popup_probability: float = 0.04,
        shuffle_labels: bool = False,
        seed: int = 0,
    ) -> None:
        try:
            columns, rows = tiles
        except (TypeError, ValueError) as error:
            least = f"({MIN_COLUMNS}, {MIN_ROWS})"
            raise ValueError(f"tiles: expected (columns, rows), at least {least}, got {tiles!r}") from error
        if columns < MIN_COLUMNS or rows < MIN_ROWS:
            raise ValueError(f"tiles: expected at least ({MIN_COLUMNS}, {MIN_ROWS}), got {tiles}")
        if not 0 <= popup_probability <= 1:
            raise ValueError(f"popup_probability: expected 0..1, got {popup_probability}")
        self.columns, self.rows = columns, rows
        self._popup_probability = popup_probability
        self._shuffle = shuffle_labels
        self._frame = np.zeros((rows * TILE, columns * TILE, 3), dtype=np.uint8)
        self.reset(seed)

    # -- the Desktop contract -------------------------------------------------------------------------------------
    @property
    def screen_size(self) -> tuple[int, int]:
        return self.columns * TILE, self.rows * TILE

    def reset(self, seed: int) -> None:
        rng = random.Random(f"desktop {seed}")
        self.catalogue: Catalogue = shuffled(CATALOGUE, rng) if self._shuffle else CATALOGUE
        self.layout = Layout(seed, self.columns, self.rows, self.catalogue)
        self._state = SimState.fresh_desktop(self.catalogue, rng)
        if rng.random() < 0.3:
            app = rng.choice([a.name for a in self.catalogue.apps])
            self._state.open_app(app, self.layout.tabs[app][0])
        self._luck = random.Random(f"luck {seed}")
        self._held: list[str] = []  # keys between keydown and keyup
        self._pointer: Place = self.columns // 2, self.rows // 2
        self._files: dict[str, bytes] = {}
        self._drawn: dict[Place, Look] = {}
        self._scene: Scene | None = None

    def screenshot(self) -> Screenshot:
        looks = {place: cell.look for place, cell in self.scene().cells.items()}
        paint(self._frame, looks, self._drawn, self.layout.theme, self.layout.text_top)
        return Screenshot(pixels=self._frame.copy())

    def perform(self, actions: Sequence[Action]) -> None:
        acted = False
        for action in actions:
            if action.kind not in _IDLE:
                self._act(action)
                self._scene = None
                acted = True
        if acted:
            self._state.maybe_popup(self._luck, self._popup_probability)

    def setup(self, step: Mapping[str, Any]) -> None:
        """Accepts one step, ``{"type": "sim", "parameters": {"settings": {...}, "trash": [files], "open": app}}``."""
        parameters = step.get("parameters")
        if step.get("type") != "sim" or not isinstance(parameters, Mapping):
            raise TaskError(f"the simulated desktop requires setup steps of type 'sim' with parameters, got {step!r}")
        unknown = sorted(set(parameters) - set(_SETUP_KEYS))
        if unknown:
            raise TaskError(f"setup step 'sim': unknown keys {unknown}; known: {', '.join(_SETUP_KEYS)}")
        settings, trash = parameters.get("settings", {}), parameters.get("trash", ())
        if not isinstance(settings, Mapping) or not isinstance(trash, list | tuple):
            raise TaskError(f"setup step 'sim': expected settings {{name: value}} and trash [file, …], got {step!r}")
        for name, value in settings.items():
            self._preset(name, value)
        for file in trash:
            self._throw(file)
        app = parameters.get("open")
        if app is not None:
            if app not in self.layout.tabs:
                raise TaskError(f"setup step 'sim': open: expected one of {', '.join(self.layout.tabs)}, got {app!r}")
            self._state.open_app(app, self.layout.tabs[app][0])
        self._state.take_baseline()
        self._scene = None

    def read_file(self, path: str) -> bytes:
        """``/state.json`` contains the current state; other files are those written by :meth:`write_file`."""
        if path == STATE_FILE:
            return json.dumps(self.state(), sort_keys=True).encode()
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def write_file(self, path: str, data: bytes) -> None:
        if path == STATE_FILE:
            raise PermissionError(f"{STATE_FILE} is read-only: set the state with a setup step of type 'sim'")
        self._files[path] = bytes(data)

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        raise NotImplementedError(f"the simulated desktop has no shell (asked for {command!r}, {shell=}, {timeout=})")

    def close(self) -> None:
        self._files.clear()

    # -- privileged: for oracles, cloning and tests ---------------------------------------------------------------
    def fork(self) -> SimDesktop:
        """An independent desktop in the same state."""
        twin = copy.copy(self)
        twin._state = copy.deepcopy(self._state, {id(self.catalogue): self.catalogue})
        twin._luck = random.Random()
        twin._luck.setstate(self._luck.getstate())
        twin._frame, twin._drawn = np.zeros_like(self._frame), {}
        twin._held, twin._files = list(self._held), dict(self._files)
        return twin

    def scene(self) -> Scene:
        """The current content of every tile."""
        if self._scene is None:
            self._scene = build_scene(self._state, self.layout)
        return self._scene

    def elements(self) -> list[Element]:
        """All visible labelled widgets, in reading order; each is one tile."""
        return self.scene().elements()

    def state(self) -> dict[str, Any]:
        """The content of ``/state.json``."""
        return self._state.to_json()

    @property
    def inner(self) -> SimState:
        """The current state, read-only."""
        return self._state

    # -- internal -------------------------------------------------------------------------------------------------
    def _tile(self, point: Point | None) -> Place:
        """The tile under a point in pixels; points outside are moved to the edge, None is where the pointer is."""
        if point is None:
            return self._pointer
        x, y = pixel_inside(point, self.screen_size)
        return x // TILE, y // TILE

    def _act(self, action: Action) -> None:
        state, layout, kind = self._state, self.layout, action.kind
        if kind != "type":
            state.find = ""
        place = self._tile(action.start)
        self._pointer = place if action.end is None else self._tile(action.end)
        if kind in ("click", "left_double", "left_triple", "right_single", "drag"):
            scene = self.scene()
            if kind == "click":
                left_click(state, layout, scene, place)
            elif kind in ("left_double", "left_triple"):  # a third press does nothing more
                double_click(state, layout, scene, place)
            elif kind == "right_single":
                right_click(state, layout, scene, place)
            else:
                drag(state, scene, place, self._pointer)
        elif kind == "scroll":
            self._wheel(action, place)
        elif kind == "type":
            type_text(state, layout, action.content or "")
        elif kind == "hotkey":
            hotkey(state, layout, " ".join([*self._held, *(action.key or "").split()]))
        elif kind == "keydown":
            self._hold((action.key or "").split())
        elif kind == "keyup":
            self._held = [key for key in self._held if key not in (action.key or "").split()]

    def _hold(self, keys: Sequence[str]) -> None:
        """Holds the keys; a key that is not a modifier acts at once, together with the held ones."""
        self._held += [key for key in keys if key not in self._held]
        if any(key not in MODIFIERS for key in keys):
            hotkey(self._state, self.layout, " ".join(self._held))

    def _wheel(self, action: Action, place: Place) -> None:
        """Scrolls the list of the window under the pointer, unless something covers it: a row for five clicks."""
        target = self.scene().target_at(place)
        if target and target[0] not in ("app", "menu", "answer", "popup", "text"):
            for _ in range(1 if action.clicks is None else scrolls(action.clicks)):
                scroll(self._state, action.direction or "")

    def _preset(self, name: str, value: Any) -> None:
        if name not in self._state.settings:
            raise TaskError(f"setup step 'sim': no setting {name!r}; known: {', '.join(sorted(self._state.settings))}")
        place = self.catalogue.places.get(name)
        if place is not None:
            control = place.control
            options = (True, False) if control.kind == TOGGLE else control.options
            if (options and value not in options) or (not options and not isinstance(value, str)):
                raise TaskError(f"setup step 'sim': {name!r}: expected {options or 'a text'}, got {value!r}")
        self._state.settings[name] = value

    def _throw(self, file: str) -> None:
        for files in self._state.folders.values():
            if file in files:
                files.remove(file)
                self._state.trash.append(file)
                return
        raise TaskError(f"setup step 'sim': no file {file!r} in {', '.join(self._state.folders)} ({FILES}, {TRASH})")
