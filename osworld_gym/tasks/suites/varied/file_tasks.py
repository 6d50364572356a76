"""Tasks in the file manager: files by name, folders, its menus. Positions are PCManFM's, with a font of 10 pt."""

from __future__ import annotations

from collections.abc import Iterator

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    MANAGER,
    Data,
    icon,
    in_window,
    keys_step,
    mouse,
    prints,
    type_step,
)
from osworld_gym.tasks.suites.varied.editor_tasks import save_by_mouse
from osworld_gym.tasks.suites.varied.instances import (
    BINARY,
    FILES,
    FOLDERS,
    OTHERS,
    TEXTS,
    Instance,
    arrange,
    changed,
    click_item,
    contains,
    listed_file,
    trashed,
)

#: items of a file's menu and of the folder's menu: pixels from the menu's corner
FILE_MENU = {"Cut": [60, 46], "Copy": [60, 75], "Move to Trash": [60, 104], "Rename": [60, 158]}
FOLDER_MENU = {"Create New": [60, 13], "Paste": [60, 46], "Sort Files": [60, 137], "Show Hidden": [60, 158]}
NEW_FOLDER, BY_SIZE = {"popup": [40, 14]}, {"popup": [60, 96]}
BLANK = [-30, -14]  #: a part of the folder's window without icons
SETTINGS = "~/.config/pcmanfm/default/pcmanfm.conf"


def file_tasks() -> Iterator[Instance]:
    """Trash, rename, make folders, copy and move between folders, settings, open and edit."""
    for i, name in enumerate(FILES):
        folder, text = FOLDERS[i % len(FOLDERS)], TEXTS[i]
        yield _trash(name)
        yield _drag(name, folder)
        yield _rename(name, text)
        if i < len(FOLDERS):
            yield _new_folder(text)
            yield _trash_inside(name, folder)
            yield _transfer(name, folder, "Copy")
            yield _transfer(name, folder, "Cut")
            yield _open_and_write(name, text)
    yield from _settings()


def _desk(name: str, folder: str = "", content: str = BINARY, **more: object) -> tuple[Data, Data]:
    """Setup: a file, a folder, other files; the file manager."""
    others = {"names": list(OTHERS), "count": [3, 6], "content": BINARY}
    folders = [folder] if folder else []
    return arrange(files={name: content} | more, folders=folders, others=others), MANAGER


def _menu_of(name: str, folder: str = DOCUMENTS) -> Data:
    return mouse("right", icon(name, folder), f"the file {name}", f"menu {name}")


def _blank_menu(title: str = "Documents") -> Data:
    return mouse("right", {"window": title, "at": BLANK}, "the empty part of the folder", "menu blank")


def _item(label: str, menu: dict[str, list[int]]) -> Data:
    return click_item({"popup": menu[label]}, label, f"click {label}")


def _select(name: str, folder: str = DOCUMENTS) -> Data:
    return mouse("click", icon(name, folder), f"the file {name}", f"Select {name}")


def _double(name: str, intent: str) -> Data:
    return mouse("double", icon(name), name, intent)


def _trash(name: str) -> Instance:
    return Instance(
        template="trash",
        topic="trash",
        known=True,
        domain="files",
        instruction=f"Move the file {name} to the trash.",
        config=_desk(name),
        evaluator=trashed(name, BINARY),
        expert=(_select(name), keys_step("delete", f"Choose Move to Trash for {name}")),
        native=(_menu_of(name), _item("Move to Trash", FILE_MENU)),
    )


def _trash_inside(name: str, folder: str) -> Instance:
    inside = f"{DOCUMENTS}/{folder}"
    more = {f"{folder}/{name}": BINARY, f"{folder}/{FILES[-1]}": BINARY}
    return Instance(
        template="trash-inside",
        topic="trash-inside",
        known=True,
        domain="files",
        instruction=f"Move the file {name} in the folder {folder} to the trash.",
        config=_desk(FILES[-2], folder, **more),
        evaluator=trashed(f"{folder}/{name}", BINARY),
        expert=(
            _double(folder, f"Open {folder}"),
            in_window(folder, _select(name, inside)),
            keys_step("delete", f"Choose Move to Trash for {name}"),
        ),
        native=(
            _double(folder, f"double {folder}"),
            in_window(folder, _menu_of(name, inside)),
            _item("Move to Trash", FILE_MENU),
        ),
    )


def _rename(name: str, new: str) -> Instance:
    typed = in_window("Rename", type_step(f"{new}\n", f"type {new}"))
    return Instance(
        template="rename",
        topic="rename",
        known=False,
        domain="files",
        instruction=f"Rename the file {name} to {new}.",
        config=_desk(name),
        evaluator=changed(listed_file(name, BINARY), listed_file(new, BINARY)),
        expert=(_select(name), keys_step("f2", f"Choose Rename for {name}"), typed | {"intent": f"Type {new}"}),
        native=(_menu_of(name), _item("Rename", FILE_MENU), typed),
    )


def _new_folder(name: str) -> Instance:
    typed = in_window("Creating", type_step(f"{name}\n", f"type {name}"))
    return Instance(
        template="new-folder",
        topic="new-folder",
        known=True,
        domain="files",
        instruction=f"Create a folder with the name {name}.",
        config=_desk(FILES[0]),
        evaluator=changed(f"./{name}"),
        expert=(keys_step("ctrl shift n", "Choose Create New and Folder"), typed | {"intent": f"Type {name}"}),
        native=(
            _blank_menu(),
            _item("Create New", FOLDER_MENU),
            click_item(NEW_FOLDER, "Folder", "click Folder", menus=2),
            typed,
        ),
    )


def _transfer(name: str, folder: str, verb: str) -> Instance:
    """Copies or moves a file into a folder, through the clipboard."""
    copied, gone = listed_file(f"{folder}/{name}", BINARY), listed_file(name, BINARY)
    return Instance(
        template=verb.lower(),
        topic=verb.lower(),
        known=False,
        domain="files",
        instruction=f"{verb} the file {name} and paste it in the folder {folder}.",
        config=_desk(name, folder),
        evaluator=changed(copied) if verb == "Copy" else changed(copied, gone),
        expert=(
            _select(name),
            keys_step(f"ctrl {'c' if verb == 'Copy' else 'x'}", f"Choose {verb} for {name}"),
            _double(folder, f"Open {folder}"),
            in_window(folder, keys_step("ctrl v", "Choose Paste")),
        ),
        native=(
            _menu_of(name),
            _item(verb, FILE_MENU),
            _double(folder, f"double {folder}"),
            in_window(folder, _blank_menu(folder)),
            _item("Paste", FOLDER_MENU),
        ),
    )


def _drag(name: str, folder: str) -> Instance:
    def drag(intent: str) -> Data:
        step = mouse("drag", icon(name), f"the file {name}", intent)
        return step | {"onto": icon(folder), "goal": f"the folder {folder}"}

    return Instance(
        template="drag",
        topic="drag",
        known=True,
        domain="files",
        instruction=f"Drag the file {name} to the folder {folder}.",
        config=_desk(name, folder),
        evaluator=changed(listed_file(name, BINARY), listed_file(f"{folder}/{name}", BINARY)),
        expert=(drag(f"Drag {name} to {folder}"),),
        native=(drag(f"drag {name}"),),
    )


def _open_and_write(name: str, text: str) -> Instance:
    path = f"{name}.txt"
    typed = in_window("Mousepad", type_step(text, f"type {text}"))
    return Instance(
        template="open-write",
        topic="open-write",
        known=True,
        domain="files",
        instruction=f"Open the file {path}, write {text} and save it.",
        config=_desk(path, content=""),
        evaluator=contains(f"{DOCUMENTS}/{path}", text),
        expert=(_double(path, f"Open {path}"), typed | {"intent": f"Type {text}"}, keys_step("ctrl s", "Choose Save")),
        native=(_double(path, f"double {path}"), typed, *save_by_mouse()),
    )


def _settings() -> Iterator[Instance]:
    """Two settings of the file manager, which a policy that was cloned on the known tasks has not seen."""
    for name in FILES[:2]:
        yield Instance(
            template="hidden",
            topic="hidden",
            known=False,
            domain="files",
            instruction=f"Show the hidden files next to {name}.",
            config=_desk(name, **{".secret": BINARY}),
            evaluator=prints(f"grep '^show_hidden=' {SETTINGS}", "show_hidden=1\n"),
            expert=(keys_step("ctrl h", "Choose Show Hidden"),),
            native=(_blank_menu(), _item("Show Hidden", FOLDER_MENU)),
        )
        yield Instance(
            template="sort",
            topic="sort",
            known=False,
            domain="files",
            instruction=f"Sort the files next to {name} by size.",
            config=_desk(name),
            evaluator=prints(f"grep '^sort=' {SETTINGS}", "sort=size;ascending;\n"),
            expert=(
                _blank_menu() | {"intent": "Open the menu of the folder"},
                keys_step("s", "Open Sort Files"),
                keys_step("s", "Choose By Size"),
            ),
            native=(
                _blank_menu(),
                click_item({"popup": FOLDER_MENU["Sort Files"]}, "Sort Files", "open Sort Files"),
                click_item(BY_SIZE, "By Size", "click By Size", menus=2),
            ),
        )
