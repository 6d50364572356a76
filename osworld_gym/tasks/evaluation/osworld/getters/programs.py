"""Getters of the settings and state of VLC, GIMP, VS Code and the default video player."""

from __future__ import annotations

import http.client
from base64 import b64encode
from collections import Counter

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation.osworld.getters.values import Config, key, listens, read
from osworld_gym.tasks.setup.run import COMMAND, TaskRun
from osworld_gym.types import Action

HOME = "/home/user"
VLC_PORT, VLC_PASSWORD = 8080, "password"  # of VLC's web interface, as the tasks configure it
REFUSED = range(300, 500)  # statuses of VLC's web interface that a restart does not change
ANSWER = 15.0  # seconds

#: the types under ``video/`` that OSWorld queries with xdg-mime
VIDEO_TYPES = (
    *("3gp", "3gpp", "3gpp2", "avi", "divx", "dv", "fli", "flv", "mp2t", "mp4", "mp4v-es", "mpeg", "mpeg-system"),
    *("msvideo", "ogg", "quicktime", "vnd.divx", "vnd.mpegurl", "vnd.rn-realvideo", "webm", "x-anim", "x-avi", "x-flc"),
    *("x-fli", "x-flv", "x-m4v", "x-matroska", "x-mpeg", "x-mpeg-system", "x-mpeg2", "x-ms-asf", "x-ms-asf-plugin"),
    *("x-ms-asx", "x-ms-wm", "x-ms-wmv", "x-ms-wmx", "x-ms-wvx", "x-msvideo", "x-nsv", "x-ogm", "x-ogm+ogg"),
    *("x-theora", "x-theora+ogg"),
)


def vlc_config(run: TaskRun, config: Config) -> bytes:
    """VLC's ``vlcrc``. Raises FileNotFoundError if there is none (OSWorld: TypeError)."""
    del config
    return read(run, f"{HOME}/.config/vlc/vlcrc")


def vlc_playing_info(run: TaskRun, config: Config) -> bytes:
    """The status XML of VLC's web interface.

    Raises:
        FileNotFoundError: no process listens on the interface's port, since VLC was closed, or what listens refuses the
            request: another password, or another program. The policy has caused either.
        DesktopError: ``evaluator_failed``: a process listens but does not respond, or with a server's error.
        TaskError: this provider does not forward the port.
    """
    del config
    address = run.desktop.forwarded(VLC_PORT)
    if address is None:
        raise TaskError(f"getter 'vlc_playing_info' requires port {VLC_PORT}, which this provider does not forward")
    connection = http.client.HTTPConnection(*address, timeout=ANSWER)
    try:
        password = b64encode(f":{VLC_PASSWORD}".encode()).decode()
        connection.request("GET", "/requests/status.xml", headers={"Authorization": f"Basic {password}"})
        reply = connection.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException) as error:
        if not listens(run, VLC_PORT):
            raise FileNotFoundError("VLC's web interface") from error
        raise DesktopError(FailureReason.evaluator_failed, f"VLC does not answer: {error}") from error
    finally:
        connection.close()
    if reply.status in REFUSED:
        raise FileNotFoundError(f"VLC's web interface, which answers with status {reply.status}")
    if reply.status != 200:
        raise DesktopError(FailureReason.evaluator_failed, f"VLC answers with status {reply.status}")
    return body


def gimp_config_file(run: TaskRun, config: Config) -> bytes:
    """GIMP 2.10's settings file ``file_name``. Raises FileNotFoundError if it is missing."""
    return read(run, f"{HOME}/.config/GIMP/2.10/{key(config, 'file_name')}")


def vscode_config(run: TaskRun, config: Config) -> bytes:
    """The file ``path``, after VS Code's command ``vscode_extension_command`` (entered in the palette) wrote it."""
    command = str(key(config, "vscode_extension_command"))
    run.desktop.perform([Action("hotkey", key="ctrl shift p")])
    run.desktop.perform([Action("type", content=command), Action("hotkey", key="enter")])
    return read(run, str(key(config, "path")))


def default_video_player(run: TaskRun, config: Config) -> str:
    """The ``.desktop`` file that opens most video types (with a line end, as xdg-mime prints it), or ``unknown``."""
    del config
    asks = "; ".join(f"xdg-mime query default video/{kind}" for kind in VIDEO_TYPES)
    players = Counter(run.desktop.run(asks, shell=True, timeout=COMMAND).output.splitlines(keepends=True))
    return players.most_common(1)[0][0] if players else "unknown"
