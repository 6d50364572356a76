"""Tasks in VLC: playback modes, snapshots, playlists. The film is generated, and paused at its start."""

from __future__ import annotations

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    MUSIC,
    VIDEOS,
    Data,
    bytes_step,
    desktop_task,
    in_window,
    infeasible_script,
    keys_step,
    launch_and_wait,
    metric,
    output,
    script,
    type_step,
    wait_for_window,
)
from osworld_gym.tasks.suites.desktop.content.media import GRASS, SKY, make_avi, make_wav
from osworld_gym.tasks.task import Task

APP = "vlc"
#: options against dropped frames: on a busy machine, VLC might drop all of them; and against a film that stays as small
#: as its file, in a window that VLC has resized to that size and that is maximised again at the same time
OPTIONS = ("--no-drop-late-frames", "--no-skip-frames", "--no-qt-video-autoresize")
#: Python: asks VLC's web interface for its status, after an optional command; raises if VLC is not running
_REQUEST = """
import base64, sys, urllib.request
def ask(command=""):
    request = urllib.request.Request("http://127.0.0.1:8080/requests/status.json?" + command)
    request.add_header("Authorization", "Basic " + base64.b64encode(b":password").decode())
    return urllib.request.urlopen(request, timeout=5).read().decode()
"""
#: prints the status, after an optional command; prints nothing if VLC is not running
ASK = ["python3", "-c", _REQUEST + 'print(ask("".join(sys.argv[1:])))']
#: Python script; arguments: red, green, blue of the sky, then of the grass. Prints "film shown" if the film is paused
#: at its start, and there is sky below the menu and grass above the controls within 2 s. A film that is paused
#: elsewhere goes to its start; one without its picture is stopped and played: VLC then makes the picture's window again
_FILM_SHOWN = f"""
import json, time
from PIL import ImageGrab
{_REQUEST}
def shown():
    screen = ImageGrab.grab().convert("RGB")
    middle = screen.width // 2
    found = screen.getpixel((middle, screen.height // 10)) + screen.getpixel((middle, screen.height * 9 // 10))
    return all(abs(value - int(wanted)) < 40 for value, wanted in zip(found, sys.argv[1:]))
status = json.loads(ask())
if status["state"] == "paused" and status["time"] > 0:
    ask("command=seek&val=0")
elif status["state"] == "paused":
    end = time.monotonic() + 2
    while not (done := shown()) and time.monotonic() < end:
        time.sleep(0.1)
    if done:
        print("film shown")
    else:
        ask("command=pl_stop")
        ask("command=pl_play")
"""
#: parameters of the setup step that waits for the picture
PICTURE: Data = {
    "command": ["python3", "-c", _FILM_SHOWN, *map(str, SKY + GRASS)],
    "until": {"stdout": "film shown"},
}
#: folders where VLC may write its snapshots
SNAPSHOTS = ("find", "/home/user", "-maxdepth", "2", "-name", "vlcsnap*.png", "-size", "+0")


def film() -> list[Data]:
    """Setup: a film in VLC that was played once and is paused at its start.

    It is opened after the window has its final size. On a loaded machine the picture may all the same stay as small as
    the film, in a corner; such a screen is still, too, so that the picture is looked for.
    """
    answers = {"command": ASK, "until": {"returncode": 0}}
    play_it = {"command": [*ASK, "command=in_play&input=file:///home/user/Videos/film.avi"]}
    paused = {"command": ASK, "until": {"stdout": '"state":"paused"'}}
    back = {"command": [*ASK, "command=seek&val=0"], "until": {"stdout": '"time":0'}}
    return [
        bytes_step(f"{VIDEOS}/film.avi", make_avi(seconds=3)),
        *launch_and_wait("VLC media player", "vlc", "--no-video-title-show", "--play-and-pause", *OPTIONS),
        {"type": "execute", "parameters": answers},
        {"type": "execute", "parameters": play_it},
        *wait_for_window("film.avi"),
        {"type": "execute", "parameters": paused},
        {"type": "execute", "parameters": back},
        {"type": "execute", "parameters": PICTURE},
        {"type": "sleep", "parameters": {"seconds": 2}},
    ]


def says(*patterns: str) -> Data:
    """Evaluator: each regex matches VLC's status."""
    return metric("check_list", output(*ASK), {"expect": list(patterns), "unexpect": []})


def _mode(name: str, instruction: str, steps: list[Data], *state: str) -> Task:
    """A task that is done when each regex matches VLC's status."""
    reached: Data = {"all": [{"says": pattern, "command": ASK} for pattern in state]}
    return desktop_task(
        f"vlc-{name}", APP, instruction, film(), says(*state), script(("Change how it plays", steps), end=reached)
    )


def vlc_tasks() -> list[Task]:
    """Seven tasks, one of them infeasible."""
    loop = keys_step("l", "Repeat the whole playlist")
    menu = keys_step("alt v", "Open the menu Video")
    return [
        _mode(
            "repeat",
            "Make VLC repeat the film that is open, for ever (the one film, not the playlist).",
            [loop, keys_step("l", "Repeat the one film")],
            r'"repeat":\s*true',
            r'"loop":\s*false',
        ),
        _mode(
            "random",
            "Make VLC repeat the whole playlist, in random order.",
            [loop, keys_step("r", "Switch random on")],
            r'"random":\s*true',
            r'"loop":\s*true',
        ),
        _mode(
            "fullscreen",
            "Show the film in full screen.",
            [menu, keys_step("f", "Choose Fullscreen")],
            r'"fullscreen":\s*(true|1)',
        ),
        *_file_tasks(menu),
        *_opening_tasks(),
    ]


def _file_tasks(menu: Data) -> list[Task]:
    return [
        desktop_task(
            "vlc-snapshot",
            APP,
            "Take a snapshot of the film's picture with VLC.",
            film(),
            metric("check_list", output(*SNAPSHOTS), {"expect": [r"/vlcsnap.*\.png$"], "unexpect": []}),
            script(
                ("Take the snapshot", [menu, keys_step("s", "Choose Take Snapshot")]),
                end={"says": "vlcsnap", "command": list(SNAPSHOTS)},
            ),
        ),
        desktop_task(
            "vlc-playlist",
            APP,
            "Save the open playlist as the file evening.xspf in the folder Documents.",
            film(),
            metric(
                "check_include_exclude",
                output("cat", f"{DOCUMENTS}/evening.xspf"),
                {"include": ["film.avi"], "exclude": []},
            ),
            script(
                (
                    "Save the playlist",
                    [
                        keys_step("ctrl y", "Open the dialog to save the playlist"),
                        in_window(
                            "Save playlist",
                            type_step("/home/user/Documents/evening.xspf\n", "Type the file's name", overwrite=True),
                        ),
                    ],
                ),
                end={"file": f"{DOCUMENTS}/evening.xspf"},
            ),
            difficulty="medium",
        ),
    ]


def _opening_tasks() -> list[Task]:
    return [
        desktop_task(
            "vlc-open",
            APP,
            "Open the sound file tone.wav of the folder Music in VLC.",
            [bytes_step(f"{MUSIC}/tone.wav", make_wav(3.0, 440.0, rate=4000)), *film()],
            says("tone"),
            script(
                (
                    "Open the file",
                    [
                        keys_step("ctrl o", "Open the dialog to open a file"),
                        in_window(
                            "Select", type_step("/home/user/Music/tone.wav\n", "Type the file's name", overwrite=True)
                        ),
                    ],
                ),
                end={"says": "tone", "command": ASK},
            ),
            difficulty="medium",
        ),
        desktop_task(
            "vlc-infeasible",
            APP,
            "Let VLC translate what is said in the film into spoken Norwegian.",
            film(),
            {"func": "infeasible"},
            infeasible_script("Say that VLC cannot translate speech"),
        ),
    ]
