"""A simulated twin of another desktop: what was recorded there is shown again for the same actions."""

from osworld_gym.desktops.recorded.desktop import RecordedDesktop

__all__ = ["RecordedDesktop"]
