"""Written oracles for official tasks that need no network: task id → steps that reach the goal. Ours, not OSWorld's.

Most use a shell or the application's settings file, not the actions of a policy: they show that the task, the desktop
and OSWorld's evaluator agree on what success is. Infeasible tasks are answered with ``FAIL``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osworld_gym.tasks.setup.file_cache import TaskFile
from osworld_gym.types import StopReason

Step = Mapping[str, Any]
PROFILE = "~/.config/google-chrome/Default/Preferences"
VLCRC = "~/.config/vlc/vlcrc"


@dataclass(frozen=True, slots=True)
class OfficialOracle:
    """How a task is solved after its own setup, and the stop reason of the episode.

    Args:
        steps: setup steps to run.
        stop: how the episode ends.
        before: setup steps that come before the files.
        files: (path inside the desktop, gold file) of files to write before ``steps``.
    """

    steps: tuple[Step, ...] = ()
    stop: StopReason = StopReason.finished
    before: tuple[Step, ...] = ()
    files: tuple[tuple[str, TaskFile], ...] = ()


FAIL = OfficialOracle(stop=StopReason.call_user)


def _shell(command: str) -> Step:
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def _python(code: str) -> Step:
    return {"type": "execute", "parameters": {"command": ["python3", "-c", code]}}


def _gui(*calls: str) -> Step:
    """Runs pyautogui calls inside the desktop with short pauses, in the form of official setup steps."""
    return _python("import pyautogui, time; " + "; time.sleep(0.5); ".join(f"pyautogui.{call}" for call in calls))


def _sleep(seconds: float) -> Step:
    return {"type": "sleep", "parameters": {"seconds": seconds}}


def _done(*steps: Step) -> OfficialOracle:
    return OfficialOracle(steps)


def end_program(program: str) -> Step:
    """A step: ends a program and waits for its exit, when it writes its settings."""
    return _shell(f"pkill {program}; for i in $(seq 100); do pgrep -x {program} >/dev/null || break; sleep 0.1; done")


def _chrome(*settings: tuple[Sequence[str], Any], file: str = PROFILE) -> Step:
    """Sets Chrome's preferences, each by its path of keys; None removes one."""
    code = (
        "import json,os,sys\n"
        "path,settings=os.path.expanduser(sys.argv[1]),json.loads(sys.argv[2])\n"
        "data=json.load(open(path))\n"
        "for keys,value in settings:\n"
        "    at=data\n"
        "    for key in keys[:-1]: at=at.setdefault(key,{})\n"
        "    at.pop(keys[-1],None) if value is None else at.__setitem__(keys[-1],value)\n"
        "json.dump(data,open(path,'w'))\n"
    )
    command = ["python3", "-c", code, file, json.dumps([[list(keys), value] for keys, value in settings])]
    return {"type": "execute", "parameters": {"command": command}}


def _vlc(name: str, value: str) -> OfficialOracle:
    """Sets one line of vlcrc while VLC does not run."""
    code = (
        f"import pathlib,re; path=pathlib.Path('{VLCRC}').expanduser(); text=path.read_text(); "
        f"text=re.sub(r'(?m)^#?{name}=.*\\n','',text); path.write_text(text.rstrip('\\n')+'\\n{name}={value}\\n')"
    )
    return _done(end_program("vlc"), _python(code))


def _impress(path: str, name: str, value: str) -> OfficialOracle:
    """Sets one value of LibreOffice's registry of the user, while it does not run."""
    prop = f'<prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop>'
    item = f'<item oor:path="{path}">{prop}</item></oor:items>'
    code = (
        "import pathlib; path=pathlib.Path('~/.config/libreoffice/4/user/registrymodifications.xcu').expanduser(); "
        f"path.write_text(path.read_text().replace('</oor:items>', {item!r}))"
    )
    return _done(end_program("soffice.bin"), _python(code))


def _thunderbird(*settings: tuple[str, Any]) -> OfficialOracle:
    """Sets preferences of the tasks' profile while Thunderbird does not run, and starts it."""
    lines = "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in settings)
    code = (
        "import pathlib; path=pathlib.Path('~/.thunderbird/t5q2a5hp.default-release/prefs.js').expanduser(); "
        f"path.write_text(path.read_text() + {lines!r})"
    )
    start = {"type": "launch", "parameters": {"command": ["/usr/bin/thunderbird"]}}
    return _done(end_program("thunderbird"), _python(code), start, _sleep(5))


_BING = {
    "short_name": "Microsoft Bing",
    "keyword": "bing.com",
    "url": "https://www.bing.com/search?q={searchTerms}",
    "id": "3",
    "prepopulate_id": 3,
    "is_active": 1,
    "safe_for_autoreplace": True,
    "input_encodings": ["UTF-8"],
    "date_created": "0",
    "last_modified": "0",
    "synced_guid": "485bf7d3-0215-45af-87dc-538868000003",
}


def _bookmark(name: str, url: str) -> Step:
    """Adds a page to the bookmark bar, as Chrome writes it; Chrome must not run."""
    empty: dict[str, Any] = {"type": "folder", "id": "0", "name": "", "children": []}
    roots = {key: empty | {"id": str(i), "name": key} for i, key in enumerate(("bookmark_bar", "other", "synced"), 1)}
    roots["bookmark_bar"]["children"] = [{"type": "url", "id": "5", "name": name, "url": url}]
    text = json.dumps({"version": 1, "checksum": "", "roots": roots})
    return _python(
        f"import os; open(os.path.expanduser('~/.config/google-chrome/Default/Bookmarks'), 'w').write({text!r})"
    )


_FORGET = """
import os, sqlite3
store = sqlite3.connect(os.path.expanduser("~/.config/google-chrome/Default/History"))
store.execute("DELETE FROM visits WHERE url IN (SELECT id FROM urls WHERE url LIKE '%youtube%')")
store.execute("DELETE FROM urls WHERE url LIKE '%youtube%'")
store.commit()
"""

#: first eight characters of the task's id → its oracle
ORACLES: dict[str, OfficialOracle] = {
    # chrome
    "030eeff7": _done(end_program("chrome"), _chrome((["enable_do_not_track"], True))),
    "12086550": _done(
        _gui("hotkey('ctrl', 'l')", "write('chrome://password-manager/passwords', interval=0.02)", "press('enter')"),
        _sleep(3),
    ),
    "2ae9ba84": _done(
        end_program("chrome"),
        _chrome((["profile", "name"], "Thomas"), (["profile", "using_default_name"], False)),
        _chrome(
            (["profile", "info_cache", "Default", "name"], "Thomas"),
            (["profile", "info_cache", "Default", "is_using_default_name"], False),
            file="~/.config/google-chrome/Local State",
        ),
    ),
    "3299584d": _done(end_program("chrome"), _chrome((["session"], None))),
    "44ee5668": _done(end_program("chrome"), _python(_FORGET)),
    "480bcfea": FAIL,
    "7a5a7856": _done(
        end_program("chrome"),
        _bookmark("The Illustrated Transformer", "https://jalammar.github.io/illustrated-transformer/"),
    ),
    "ae78f875": FAIL,
    "bb5e4c0d": _done(end_program("chrome"), _chrome((["default_search_provider_data"], {"template_url_data": _BING}))),
    # gimp
    "5ca86c6f": FAIL,
    "7767eef2": _done(_shell("echo '(theme \"Light\")' >> ~/.config/GIMP/2.10/gimprc")),
    "d52d6308": _done(_gui("press('tab')")),
    "e19bd559": FAIL,
    # libreoffice_impress
    "0f84bef9": _impress("/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen", "false"),
    "ef9d12bd": _done(
        _gui("press('f10')", "press('right', presses=2, interval=0.1)", "press('down', presses=11, interval=0.1)"),
        _gui("press('enter')"),
        _sleep(2),
    ),
    # multi_apps
    "6d72aad6": FAIL,
    "937087b6": _done(
        _shell(
            "kinds=$(grep ^MimeType= /usr/share/applications/vlc.desktop | tr ';=' '\\n\\n' | grep ^video/); "
            "xdg-mime default vlc.desktop $kinds"
        )
    ),
    # os
    "28cc3b7e": _done(_shell("pulseaudio --start; pactl set-sink-volume @DEFAULT_SINK@ 100%")),
    "4783cc41": FAIL,
    "4d117223": _done(_shell("find testDir -type f -exec chmod 644 {} +")),
    "5c1075ca": _done(
        _shell(
            "cd test_environment && "
            "find . -path ./fails -prune -o -name '*failed.ipynb' -exec cp --parents {} ./fails \\;"
        )
    ),
    "5ea617a3": _done(_shell("gio trash --restore trash:///poster_party_night.webp")),
    "6f56bf42": _done(_shell("for folder in dir1 dir2 dir3; do cp file1 $folder; done")),
    "a4d98375": _done(_shell("gsettings set org.gnome.desktop.screensaver lock-enabled true")),
    "b3d4a89c": FAIL,
    "bedcedc4": _done(_shell("gsettings set org.gnome.desktop.session idle-delay 0")),
    "e0df059f": _done(_shell("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2")),
    "fe41f596": FAIL,
    # thunderbird
    "08c73485": _thunderbird(
        ("mail.server.default.applyIncomingFilters", True), ("mail.imap.use_status_for_biff", False)
    ),
    "3f28fe4f": _thunderbird(("mail.identity.id1.htmlSigText", "Anonym\nXYZ Lab")),
    "f201fbc3": _thunderbird(("mail.identity.id1.auto_quote", False)),
    # vlc
    "215dfd39": _vlc("qt-bgcone", "0"),
    "386dbd0e": _vlc("global-key-play-pause", "Ctrl+Alt+P"),
    "5ac2891a": _vlc("play-and-exit", "0"),
    "8ba5ae7a": _vlc("input-record-path", "/home/user/Desktop"),
    "9195653c": _vlc("qt-max-volume", "200"),
    "cb130f0d": FAIL,
}
