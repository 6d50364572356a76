"""Tasks in GIMP: scale, rotate, flip, desaturate, crop and export pictures."""

from __future__ import annotations

from collections.abc import Sequence

from osworld_gym.tasks.suites.authoring import (
    PICTURES,
    Data,
    bytes_step,
    desktop_task,
    file_at,
    in_window,
    infeasible_script,
    keys_step,
    launch_and_wait,
    metric,
    script,
    type_step,
    when,
)
from osworld_gym.tasks.suites.desktop.content.media import GRASS, SKY, SUN, WALL, make_png
from osworld_gym.tasks.task import Task

APP = "gimp"
WIDTH, HEIGHT = 320, 200
#: points of the picture on its sun, wall, sky and grass: fractions of its width and height
IN_SUN, IN_WALL, IN_SKY, IN_GRASS = (0.175, 0.225), (0.75, 0.5), (0.5, 0.1), (0.3, 0.9)
#: what the picture is in grey by any of the usual conversions: luminance, luma, lightness or average
GREYS = {
    "pixels": [[*IN_SUN, [185] * 3], [*IN_WALL, [107] * 3], [*IN_SKY, [170] * 3]],
    "tolerance": 30,
}


def opened() -> list[Data]:
    """Setup: the picture scene.png, open in GIMP."""
    return [
        bytes_step(f"{PICTURES}/scene.png", make_png(WIDTH, HEIGHT)),
        *launch_and_wait("320x200", "gimp", "--no-splash", f"{PICTURES}/scene.png"),
    ]


def image(name: str, **rules: object) -> Data:
    """Evaluator: the picture satisfies the rules of ``check_image``."""
    return metric("check_image", file_at(f"{PICTURES}/{name}"), rules)


def export(name: str) -> tuple[str, list[Data]]:
    """Oracle steps that export the open picture under a name."""
    path = f"{PICTURES}/{name}"
    kind = "JPEG" if name.endswith(".jpg") else "PNG"
    return (
        f"Export the picture as {name}",
        [
            keys_step("ctrl shift e", "Open the dialog to export"),
            in_window("Export Image", type_step(f"{path}\n", f"Type the name {name}", overwrite=True)),
            in_window(f"Export Image as {kind}", keys_step("enter", "Export with these options")),
        ],
    )


def _task(
    name: str, instruction: str, out: str, rules: dict[str, object], steps: Sequence[Data], difficulty: str = "medium"
) -> Task:
    oracle = script(("Change the picture", steps), export(out), end={"file": f"{PICTURES}/{out}"})
    return desktop_task(f"gimp-{name}", APP, instruction, opened(), image(out, **rules), oracle, difficulty=difficulty)


MENU = keys_step("alt i", "Open the menu Image")
TRANSFORM = keys_step("t", "Choose Transform")


def gimp_tasks() -> list[Task]:
    """Seven tasks, one of them infeasible."""
    return [*_geometry(), *_others()]


def _geometry() -> list[Task]:
    return [
        desktop_task(
            "gimp-jpeg",
            APP,
            "Export the open picture as scene.jpg into the folder Pictures, as a JPEG file.",
            opened(),
            image("scene.jpg", format="JPEG", size=[WIDTH, HEIGHT], pixels=[[*IN_SUN, SUN], [*IN_WALL, WALL]]),
            script(export("scene.jpg"), end={"file": f"{PICTURES}/scene.jpg"}),
        ),
        _task(
            "scale",
            "Scale the open picture to a width of 160 pixels, in proportion, and export it as small.png in Pictures.",
            "small.png",
            {"size": [160, 100], "pixels": [[*IN_SUN, SUN], [*IN_WALL, WALL]]},
            [
                MENU,
                keys_step("s", "Choose Scale Image"),
                in_window("Scale Image", type_step("160", "Type the width", overwrite=True)),
                keys_step("tab", "Leave the field, so that the height follows"),
                keys_step("alt s", "Choose Scale"),
            ],
        ),
        _task(
            "rotate",
            "Rotate the open picture by 90 degrees clockwise and export it as turned.png in Pictures.",
            "turned.png",
            {"size": [HEIGHT, WIDTH], "pixels": [[0.775, 0.175, SUN], [0.5, 0.75, WALL], [0.1, 0.3, GRASS]]},
            [
                MENU,
                TRANSFORM,
                keys_step("down", "Go down to Flip Vertically"),
                keys_step("down", "Go down to Rotate 90° clockwise"),
                keys_step("enter", "Choose Rotate 90° clockwise"),
            ],
        ),
        _task(
            "flip",
            "Flip the open picture horizontally (the house goes to the left) and export it as mirror.png in Pictures.",
            "mirror.png",
            {"size": [WIDTH, HEIGHT], "pixels": [[0.825, 0.225, SUN], [0.25, 0.5, WALL], [0.5, 0.1, SKY]]},
            [MENU, TRANSFORM, keys_step("h", "Choose Flip Horizontally")],
        ),
    ]


def _others() -> list[Task]:
    return [
        _task(
            "grey",
            "Convert the open picture to greyscale (menu Image, Mode) and export it as grey.png in Pictures.",
            "grey.png",
            {"size": [WIDTH, HEIGHT], "grey": True} | GREYS,
            [MENU, keys_step("m", "Choose Mode"), keys_step("g", "Choose Grayscale")],
        ),
        desktop_task(
            "gimp-new",
            APP,
            "Make a new picture of 400 by 300 pixels and export it as blank.png in Pictures.",
            opened(),
            image("blank.png", size=[400, 300], format="PNG", grey=True),  # the open picture, scaled, is in colour
            script(
                (
                    "Make the picture",
                    [
                        keys_step("ctrl n", "Open the dialog for a new picture"),
                        in_window("Create a New Image", type_step("400", "Type the width", overwrite=True)),
                        keys_step("tab", "Go to the height"),
                        type_step("300\n", "Type the height", overwrite=True),
                        when({"window": "400x300"}, keys_step("alt o", "Choose OK"))
                        | {"only_if": {"window": "Create a New Image"}},
                    ],
                ),
                export("blank.png"),
                end={"file": f"{PICTURES}/blank.png"},
            ),
            difficulty="medium",
        ),
        desktop_task(
            "gimp-infeasible",
            APP,
            "Use GIMP to record a video of the screen for ten seconds.",
            opened(),
            {"func": "infeasible"},
            infeasible_script("Say that GIMP cannot record the screen"),
        ),
    ]
