"""The suite's words: names of files and folders, texts to type, and the items of the desktop's menu."""

from __future__ import annotations

#: files that tasks are about
FILES = ("apple", "river", "stone", "cloud", "lemon", "tiger")
#: files that are there by chance
OTHERS = ("bread", "candle", "desert", "engine", "forest", "garden", "hammer", "island", "jacket", "kettle", "ladder",
          "marble", "needle", "orange", "pepper", "quartz", "rocket", "saddle", "tunnel", "window")  # fmt: skip
FOLDERS = ("Archive", "Letters", "Photos")
#: new names and texts to type
TEXTS = ("winter", "summer", "silver", "copper", "violin", "guitar")

#: submenu → items of the desktop's menu; first letters differ, since openbox selects by them
MENU = {
    "Sound": ("mute", "echo", "bass"),
    "Display": ("night", "zoom", "blur"),
    "Power": ("sleep", "timer", "wake"),
    "Network": ("proxy", "roaming", "hotspot"),
    "Access": ("camera", "history", "location"),
    "Input": ("gestures", "repeat", "sticky"),
}
KNOWN_GROUPS = ("Sound", "Display", "Power")
