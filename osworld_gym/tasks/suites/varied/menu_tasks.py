"""Tasks in the menu of the desktop, which is the window manager's: submenus and items in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from osworld_gym.tasks.suites.authoring import Data, keys_step, mouse
from osworld_gym.tasks.suites.varied.instances import KNOWN_GROUPS, MENU, Instance, arrange, chosen, click_item

#: where the desktop's menu is opened, as fractions of the screen: the menu's items lie on the grid of 640 x 360 pixels
FREE = {"screen": [170 / 640, 79 / 360]}


def menu_tasks() -> Iterator[Instance]:
    """Choose one item, for every item; then one item of each of two submenus."""
    for group, items in MENU.items():
        for item in items:
            yield _choose("choose", [(group, item)])
    for groups in (("Sound", "Display"), ("Display", "Power"), ("Sound", "Network"), ("Access", "Input")):
        first, second = groups
        for i in range(2):
            yield _choose("choose-two", [(first, MENU[first][i]), (second, MENU[second][2 - i])])


def _choose(template: str, pairs: Sequence[tuple[str, str]]) -> Instance:
    labels = [item for _, item in pairs]
    return Instance(
        template=template,
        topic=f"{template} {' '.join(group for group, _ in pairs)}",
        known=all(group in KNOWN_GROUPS for group, _ in pairs),
        domain="desktop",
        instruction=f"Choose {' and '.join(labels)} in the menu of the desktop.",
        config=(arrange(menu={group: list(items) for group, items in MENU.items()}),),
        evaluator=chosen(*labels),
        expert=tuple(step for group, item in pairs for step in _by_keys(group, item)),
        native=tuple(step for group, item in pairs for step in _by_mouse(group, item)),
    )


def _by_mouse(group: str, item: str) -> list[Data]:
    return [
        mouse("right", FREE, "the desktop", "menu desktop"),
        click_item({"entry": group}, group, f"open {group}"),
        click_item({"entry": item}, item, f"click {item}", menus=2),
    ]


def _by_keys(group: str, item: str) -> list[Data]:
    """Openbox chooses an entry by its first letter."""
    return [
        keys_step("alt space", "Open the menu of the desktop"),
        keys_step(group[0].lower(), f"Open {group}"),
        keys_step(item[0], f"Choose {item}"),
    ]
