"""Metrics on VLC: its settings file ``vlcrc``, its playback status, and whether it is in full screen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from osworld_gym.tasks.evaluation.parsing import parse_xml
from osworld_gym.tasks.evaluation.sidecar.calling import RuleError

Rules = Mapping[str, Any]
_META = 'information/category[@name="meta"]/info[@name="{}"]'
_STREAM = 'information/category[@name="Stream 0"]/info[@name="{}"]'
_FILE_NAMES = [_META.format(name) for name in ("filename", "title", "uri", "location", "name")]
_ADDRESSES = [_META.format(name) for name in ("url", "URI", "location", "title", "filename")] + [
    _STREAM.format(name) for name in ("Codec", "Type", "Language")
]


def _last(config: bytes, name: str, default: str) -> str:
    """The value of the last line with ``name=`` in it; also in comments, as in OSWorld (these contain defaults)."""
    values = [line.split("=")[-1].strip() for line in config.decode().split("\n") if f"{name}=" in line]
    return values[-1] if values else default


def _wanted(rules: Rules, key: str) -> str:
    return str(rules[key]) if isinstance(rules[key], int) else rules[key]


def check_qt_bgcone(config: bytes, rules: Rules) -> float:
    """1 when the cone in the background is ``rules["expected_qt_bgcone"]`` (default 1)."""
    return float(_last(config, "qt-bgcone", "1") == _wanted(rules, "expected_qt_bgcone"))


def check_qt_max_volume(config: bytes, rules: Rules) -> float:
    """1 when the highest volume in percent is ``rules["expected_qt_max_volume"]`` (default 125)."""
    return float(_last(config, "qt-max-volume", "125") == _wanted(rules, "expected_qt_max_volume"))


def check_qt_minimal_view(config: bytes, rules: Rules) -> float:
    """1 when the minimal view is ``rules["expected_qt_minimal_view"]`` (default 0)."""
    return float(_last(config, "qt-minimal-view", "0") == _wanted(rules, "expected_qt_minimal_view"))


def check_one_instance_when_started_from_file(config: bytes, rules: Rules) -> float:
    """1 when one instance for files is ``rules["expected_one_instance_when_started_from_file"]`` (default 1)."""
    name = "one-instance-when-started-from-file"
    return float(_last(config, name, "1") == _wanted(rules, f"expected_{name.replace('-', '_')}"))


def check_play_and_exit(config: bytes, rules: Rules) -> float:
    """1 when leaving after playing is ``rules["expected_play_and_exit"]`` (default 0). Not in OSWorld's release."""
    return float(_last(config, "play-and-exit", "0") == _wanted(rules, "expected_play_and_exit"))


def check_global_key_play_pause(config: bytes, rules: Rules) -> float:
    """1 when a global key for play/pause is set (rule ``expected_global_key_play_pause`` = 1) or not set (0)."""
    is_set = str(int(bool(_last(config, "global-key-play-pause", ""))))
    return float(is_set == _wanted(rules, "expected_global_key_play_pause"))


def check_qt_slider_colours(config: bytes, rules: Rules) -> float:
    """1 when the volume slider's colours are the rule's (``match``), or all parts are below 100 (``blackish``)."""
    default = "153;210;153;20;210;20;255;199;15;245;39;29"
    lines = [line for line in config.decode().split("\n") if "qt-slider-colours" in line]
    colours = lines[-1].split("=")[-1].strip() if lines else default
    if rules["type"] == "match":
        return float(colours == rules["expected_qt_slider_colours"])
    if rules["type"] != "blackish":
        raise RuleError(f"check_qt_slider_colours: type must be 'match' or 'blackish', got {rules['type']!r}")
    parts = [int(part) for part in colours.split(";")]
    return float(all(part < 100 for part in parts[: len(parts) // 3 * 3]))


def is_vlc_recordings_folder(config: bytes, rules: Rules) -> float:
    """1 when the first line that sets a folder for recordings names ``rules["recording_file_path"]``."""
    for line in config.decode().split("\n"):
        if not line.startswith("#") and "input-record-path" in line:
            return float(line.split("=")[-1].strip() == rules["recording_file_path"])
    return 0.0


def is_vlc_fullscreen(window: Mapping[str, int] | None, screen: Mapping[str, int] | None) -> float:
    """1 when the window is as large as the screen."""
    if window is None or screen is None:
        return 0.0
    return float(all(window[side] == screen[side] for side in ("width", "height")))


def is_vlc_playing(status: bytes, rules: Rules) -> float:
    """1 when VLC plays the file ``rules["file_name"]`` or the address ``rules["url"]``, by ``rules["type"]``."""
    tree = parse_xml(status.decode())
    if tree.findtext("state") != "playing":
        return 0.0
    if rules["type"] == "file_name":
        return float(_info(tree, _FILE_NAMES).endswith(rules["file_name"]) and bool(_info(tree, _FILE_NAMES)))
    if rules["type"] != "url":
        return 0.0
    address, wanted = _info(tree, _ADDRESSES), urlsplit(rules["url"])
    if not address:
        return 0.0
    actual = urlsplit(address)
    same_place = "://" in address and actual.netloc == wanted.netloc and wanted.path in actual.path
    return float(rules["url"] in address or address == PurePosixPath(wanted.path).name or same_place)


def _info(tree: ElementTree.Element, paths: list[str]) -> str:
    """The text at the first of the paths that has one."""
    return next((text for path in paths if (text := tree.findtext(path))), "")
