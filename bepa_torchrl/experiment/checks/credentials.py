"""No setting holds a token or a password: settings are written to the run's folder, and some to its card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bepa_torchrl.experiment.settings import Settings

_CREDENTIALS = re.compile(r"://[^/\s]*@")  # user information of a URL (RFC 3986, section 3.2.1)
_SERVER = re.compile(r"://.*@")  # a token of the provider remote may have slashes
_FIX = {
    "env.options.urls": "set the variable OSWORLD_SERVER_URL instead",
    "env.options.reset_by": "name a command that reads it from elsewhere",
    "policy.engine.url": "set policy.engine.token_file, or the engine's variable",
    "judge.url": "set the variable OPENAI_API_KEY",
}


def no_credentials(settings: Settings) -> str | None:
    """No URL among the settings has a token, or a user and password."""
    for key, text in _texts(settings):
        pattern = _SERVER if key == "env.options.urls" else _CREDENTIALS
        if pattern.search(text):
            fix = _FIX.get(key, "leave it out")
            return f"{key}: what stands before '@' in a URL would be written to the run's folder; {fix}"
    return None


def _texts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Keys and values of the settings that may be URLs."""
    for name, value in settings.env.options.items():
        yield from ((f"env.options.{name}", text) for text in _strings(value))
    for key, url in (("policy.engine.url", settings.policy.engine.url), ("judge.url", settings.judge.url)):
        if url is not None:
            yield key, url


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
