"""Writes ``configs/train.yaml`` and ``docs/settings.md`` from the dataclasses: ``make settings``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

import yaml

from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.settings.kinds import describe, key_of_field
from osworld_gym.atomic import write_text

ROOT = Path(__file__).parents[3]
_WIDTH = 120
_COLUMN = 26  #: of the comments in the YAML file
_YAML_HEAD = """\
# The settings and their default values: `bepa train key=value ...`. An unknown key is an error.
# Written by `make settings` from bepa_torchrl/experiment/settings/; docs/settings.md describes each setting in full.
# The files in env/, policy/, algo/ and experiment/ replace some of these values, and set those without a default.
defaults:
  - _self_
  - env: sim
  - policy: tiny
  - algo: bepa
  - optional experiment: null
"""
_PAGE_HEAD = """\
# Settings

Every setting of a run, for `bepa train` and the commands that take `key=value`, in the
[grammar of Hydra](https://hydra.cc/docs/advanced/override_grammar/basic/), such as `env.train_limit=null`.
`env=`, `policy=`, `algo=` and `experiment=` choose a file of `configs/` (or of `--config-dir FOLDER`), which replaces
defaults; a value on the command line replaces both. An unknown name, a value of the wrong type, settings that
contradict each other, and one that nothing would read with the others are refused in one line before anything is
prepared.

A default "of `env=`" is the chosen file's. In a saved run (`config.yaml`) a setting that a newer
version has added has its default. This page is written by `make settings` from `bepa_torchrl/experiment/settings/`.
"""


class Setting(NamedTuple):
    """One setting: its name in its section, type, default (MISSING: none) and description."""

    name: str
    kind: Any
    default: Any
    text: str


def settings_of(cls: type) -> Iterator[Setting]:
    """The settings of a section, in order, with the text of the docstring's list of arguments."""
    hints, texts = get_type_hints(cls, include_extras=True), _texts(cls)
    for field in fields(cls):
        yield Setting(key_of_field(field.name), hints[field.name], _default(field), texts[field.name])


def train_yaml() -> str:
    """The text of ``configs/train.yaml``."""
    return f"{_YAML_HEAD}\n{''.join(_yaml_section(Settings, 0))}"


def settings_page() -> str:
    """The text of ``docs/settings.md``."""
    return f"{_PAGE_HEAD}\n{''.join(_page_section(Settings, ''))}".rstrip() + "\n"


# --- YAML ---------------------------------------------------------------------------------------------------------


def _yaml_section(cls: type, indent: int) -> Iterator[str]:
    for setting in settings_of(cls):
        if is_dataclass(setting.kind):
            blank = "" if indent else "\n"
            lines = "".join(_yaml_section(cast(type, setting.kind), indent + 2))
            yield f"{blank}{' ' * indent}{setting.name}:\n{lines}"
        elif setting.default is not MISSING:
            yield _yaml_line(setting, indent)


def _yaml_line(setting: Setting, indent: int) -> str:
    """``key: value  # first sentence``, or the comment in lines of its own above if it is too long."""
    key = f"{' ' * indent}{setting.name}: {_value(setting.default)}"
    comment = _comment(setting)
    line = f"{key:<{_COLUMN - 2}}  # {comment}"
    if len(line) <= _WIDTH:
        return f"{line}\n"
    start = f"{' ' * indent}# "
    wrapper = textwrap.TextWrapper(_WIDTH, start, start, break_long_words=False, break_on_hyphens=False)
    above = wrapper.wrap(comment)
    return "".join(f"{each}\n" for each in (*above, key))


def _comment(setting: Setting) -> str:
    """The choices, unless the description names them all, and the first sentence of the description."""
    choices = get_args(setting.kind) if get_origin(setting.kind) is Literal else ()
    if all(f"``{choice}``" in setting.text for choice in choices):
        choices = ()
    words = setting.text.partition(". ")[0].rstrip(".").replace("`", "").replace("None", "null")
    return f"{' | '.join(choices)}: {words}" if choices else words


def _value(value: Any) -> str:
    """A default in YAML, in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = str(yaml.safe_dump(plain, default_flow_style=True, width=10_000))
    return text.removesuffix("...\n").strip()


# --- Markdown -----------------------------------------------------------------------------------------------------


def _page_section(cls: type, prefix: str) -> Iterator[str]:
    """A heading, the section's sentence and its table, then the sections in it."""
    every = list(settings_of(cls))
    title = f"`{prefix.rstrip('.')}`" if prefix else "The run"
    about = _markdown(inspect.getdoc(cls) or "").partition("\n")[0]
    yield f"## {title}\n\n{about}\n\n| Setting | Default | Value | |\n|---|---|---|---|\n"
    for setting in every:
        if is_dataclass(setting.kind):
            continue
        default = f"of `{prefix.split('.')[0]}=`" if setting.default is MISSING else f"`{_value(setting.default)}`"
        cells = (f"`{prefix}{setting.name}`", default, _markdown(describe(setting.kind)), _sentence(setting.text))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
    yield "\n"
    for setting in every:
        if is_dataclass(setting.kind):
            yield from _page_section(cast(type, setting.kind), f"{prefix}{setting.name}.")


def _sentence(text: str) -> str:
    """The description as sentences of Markdown."""
    return _markdown(text[:1].upper() + text[1:]).replace("None", "`null`")


def _markdown(text: str) -> str:
    """Roles and literals of reStructuredText as code, names of pages as links."""
    code = re.sub(r":\w+:`([^`]+)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"docs/([\w/-]+)\.md", r"[\1](\1.md)", code)


# --- the dataclasses ----------------------------------------------------------------------------------------------


def _texts(cls: type) -> dict[str, str]:
    """The text of each argument in the docstring, in one line."""
    lines = (inspect.getdoc(cls) or "").partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", lines, flags=re.MULTILINE)
    return {name: re.sub(r":\w+:`([^`]+)`", r"``\1``", " ".join(text.split())) for name, text in entries}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def main() -> None:
    """Writes both files into the checkout."""
    write_text(ROOT / "configs" / "train.yaml", train_yaml())
    write_text(ROOT / "docs" / "settings.md", settings_page())


if __name__ == "__main__":
    main()
