"""Grounding data: screens of the simulated desktop, with instructions to act on a label."""

from __future__ import annotations

import random
from collections import Counter

from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.desktops.sim.applications import CATALOGUE, FURNITURE, WORDS
from osworld_gym.tasks.oracles.sim.free_prose import seen_on
from osworld_gym.types import Action
from recipes.tiny.turns import Screen, Turn, tile_of
from recipes.tiny.wording import Decision, Styles, worded

#: verbs of the native oracle that act on a label, and their actions
VERBS = {"click": "click", "open": "click", "tab": "click", "menu": "right_single", "double": "left_double"}
_WALK = 5  #: maximum number of random clicks before a screenshot


def label_words() -> list[str]:
    """Every word that the simulated desktop may show on a tile, sorted."""
    words = {*FURNITURE, *WORDS}
    for app in CATALOGUE.apps:
        words |= {app.name} | {tab.name for tab in app.tabs} | {tab.commit for tab in app.tabs if tab.commit}
    for control in CATALOGUE.controls():
        words |= {control.name, *control.options, *control.marks}
    for folder, files in CATALOGUE.folders:
        words |= {folder, *files}
    return sorted(words)


def walk(desktop: SimDesktop, rng: random.Random) -> None:
    """Clicks up to ``_WALK`` random elements that react, most of them inside the window."""
    for _ in range(rng.randrange(_WALK + 1)):
        cells = desktop.scene().reachable()
        inside = [(place, cell) for place, cell in cells if cell.target[0] not in ("app", "blank", "x")]
        place, cell = rng.choice(inside if inside and rng.random() < 0.6 else cells)
        point = (place[0] * 16 + 8, place[1] * 16 + 8)
        kind = "right_single" if cell.target[0] == "file" and rng.random() < 0.5 else "click"
        actions = [Action(kind, start=point)]
        if cell.target[0] == "field":
            actions.append(Action("type", content=rng.choice(WORDS)))
        desktop.perform(actions)


def labels_of(desktop: SimDesktop) -> tuple[tuple[str, int], ...]:
    """(label, image token) of every labelled tile on the screen."""
    width, height = desktop.screen_size
    return tuple((element.label, tile_of(element.centre, height, width)) for element in desktop.elements())


def grounding_turns(desktop: SimDesktop, count: int, rng: random.Random) -> list[Turn]:
    """Up to ``count`` turns whose instruction is a verb and a label that occurs once on the screen.

    All verbs of the native oracle are used: with a single one, the model learns to repeat it for any instruction, which
    cloning then has to undo.
    """
    seen = Counter(element.label for element in desktop.elements())
    single = [element for element in desktop.elements() if seen[element.label] == 1]
    turns = []
    for element in rng.sample(single, min(count, len(single))):
        verb = rng.choice(list(VERBS))
        said = f"{verb} {element.label}"
        turns.append(Turn(said, said, (Action(VERBS[verb], start=element.centre),)))
    return turns


def anywhere(desktop: SimDesktop, rng: random.Random) -> Decision:
    """A click on any element that reacts."""
    cells = [(place, cell) for place, cell in desktop.scene().reachable() if cell.target != ("blank",)]
    place, cell = rng.choice(cells)
    verb = {"app": "open", "tab": "tab"}.get(cell.target[0], "click")
    return f"{verb} {cell.look.label or 'blank'}", (Action("click", start=(place[0] * 16 + 8, place[1] * 16 + 8)),)


def grounding_screen(seed: int, count: int, styles: Styles | None = None) -> Screen:
    """One random screen with up to ``count`` grounding turns; deterministic in the seed.

    Args:
        seed: the seed of the screen and the turns.
        count: maximum number of turns.
        styles: the styles of the thoughts; None: bare decisions.
    """
    rng = random.Random(f"grounding {seed}")
    desktop = SimDesktop(popup_probability=0.1, shuffle_labels=True, seed=seed)
    walk(desktop, rng)
    turns = grounding_turns(desktop, count, rng)
    if styles is not None:
        seen = seen_on(desktop)
        turns = [worded(turn, seen, seen, styles, rng, lambda: anywhere(desktop, rng)) for turn in turns]
    return Screen(desktop.screenshot().pixels, labels_of(desktop), tuple(turns))
