"""Reads the settings: Hydra's YAML files and ``key=value`` overrides become one typed, frozen :class:`Settings`.

Hydra composes, pydantic converts. This is the only module that handles Hydra and OmegaConf objects. It does not import
torch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, cast, get_type_hints

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from bepa_torchrl.experiment.checks import SETTINGS
from bepa_torchrl.experiment.checks.check import Check, first_problem
from bepa_torchrl.experiment.checks.unread import overrides_are_read, settings_are_read
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.settings.kinds import describe, key_of_field
from bepa_torchrl.methods import METHODS
from osworld_gym.errors import did_you_mean
from osworld_gym.extensions import import_modules

_PACKAGE = Path(__file__).parents[1]
#: the top-level folder ``configs`` in a checkout; a wheel has it inside the package
CONFIGS = next((path for path in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if path.is_dir()), _PACKAGE)
GROUPS = ("env", "policy", "algo", "experiment")
#: settings that had another name in an earlier version
RENAMED = {
    "env.warm": "env.warm_pool",
    "expert.tries": "expert.selfroll_attempts",
    "expert.fallback": "expert.seed_from_converted",
    "expert.style": "expert.oracle_style",
}
#: settings that were replaced by one with other values
REPLACED = {"train.micro_batch": "replaced by 'train.max_tokens', a number of tokens instead of rows"}
#: the settings with keys of the user's choice
_FREE = ("env.options", "policy.engine.arguments", "record.starts")
_SECTIONS = {field.name for field in fields(Settings) if is_dataclass(get_type_hints(Settings)[field.name])}
_ADAPTER = TypeAdapter(Settings)


class ConfigError(ValueError):
    """A setting is invalid. The message is one line: what was expected, what was given, how to fix it."""


def load_config(
    overrides: Sequence[str] = (), *, config_dir: Path | None = None, checks: Collection[Check] = SETTINGS
) -> Settings:
    """The resolved settings. The modules of the setting ``import`` are imported, before names are checked.

    Args:
        overrides: ``key=value`` as on Hydra's command line.
        config_dir: a user's folder with further ``env/``, ``policy/``, ``algo/`` or ``experiment/`` files.
        checks: what is checked of the settings together. Of ``resume=true`` nothing is: the saved settings complete it.

    Raises:
        ConfigError: an unknown key or file, a value of the wrong type or outside its choices, settings that contradict
            each other, or a missing folder.
        ExtensionError: a module of ``import`` cannot be imported.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: expected an existing folder, got {config_dir}")
    parsed = _parse(overrides)
    for override in parsed:
        if override.key_or_group == "algo":
            continue  # checked when the modules that may add it are imported
        if override.key_or_group in GROUPS:
            _check_choice(override, config_dir)
        else:
            _check_keys(override)
    data = _compose([_line(override, config_dir) for override in parsed], config_dir)
    try:
        settings = build_settings(data)
    except ConfigError as error:
        raise ConfigError(f"{error}{_origin(str(error).split(':', 1)[0], parsed, config_dir)}") from error
    import_modules(settings.import_)
    if settings.algo.name not in METHODS:
        raise ConfigError(_unknown("algo", settings.algo.name, config_dir))
    for name in settings.compare:
        if name not in choices("algo", config_dir):
            raise ConfigError(f"compare: {_unknown('algo', name, config_dir)}")
    if not settings.resume:
        check(settings, checks)
        if settings_are_read in checks:
            check(settings, [partial(overrides_are_read, keys=_given(parsed))])
    return settings


def given_names(overrides: Sequence[str]) -> tuple[str, ...]:
    """The dotted names that a command line gives, in its order; of a mapping, ``train={keep: 3}``, those in it.

    Raises:
        ConfigError: an argument is not ``key=value``.
    """
    return _given(_parse(overrides))


def load_methods(overrides: Sequence[str] = (), *, config_dir: Path | None = None) -> dict[str, Settings]:
    """The settings of each method of a run, that of ``algo`` first; they differ in what the files of ``algo/`` set.

    Raises:
        ConfigError: as :func:`load_config`, for any of the methods.
    """
    first = load_config(overrides, config_dir=config_dir)
    loaded = {first.algo.name: first}
    shared = [override for override in overrides if not override.startswith(("algo=", "algo."))]
    own = [each for each in SETTINGS if each is not settings_are_read]  # by any of the methods, which ``first`` names
    for name in first.compare:
        if name in loaded:
            continue
        try:
            loaded[name] = load_config([*shared, f"algo={name}"], config_dir=config_dir, checks=own)
        except ConfigError as error:
            raise ConfigError(f"compare=[{name}]: {error}") from error
    return loaded


def check(settings: Settings, checks: Iterable[Check] = SETTINGS) -> None:
    """Makes the checks in their order.

    Raises:
        ConfigError: one of them fails. A check of the machine may raise other errors, see its function.
    """
    problem = first_problem(settings, checks)
    if problem is not None:
        raise ConfigError(problem)


def choices(group: str, config_dir: Path | None = None) -> list[str]:
    """Names of a group's files, and of methods; sorted."""
    return sorted({*_files(group, config_dir), *(METHODS if group == "algo" else ())})


def _files(group: str, config_dir: Path | None) -> set[str]:
    folders = [CONFIGS / group, *([] if config_dir is None else [config_dir / group])]
    return {path.stem for folder in folders for path in folder.glob("*.yaml")}


@cache
def setting_names(cls: type = Settings, prefix: str = "") -> tuple[str, ...]:
    """Every dotted name of a setting, sections included."""
    names: list[str] = []
    for name, kind in get_type_hints(cls).items():
        names.append(f"{prefix}{key_of_field(name)}")
        if is_dataclass(kind):
            names += setting_names(cast(type, kind), f"{prefix}{name}.")
    return tuple(names)


def build_settings(data: Mapping[str, Any]) -> Settings:
    """Builds typed settings from nested mappings of plain values, as read from YAML or JSON; they are not checked.

    A key that is missing gets its default: a run that an older version has saved lacks the newer ones.

    Raises:
        ConfigError: an unknown key, a missing one without a default, a value of the wrong type or outside its choices.
    """
    try:
        return _ADAPTER.validate_json(json.dumps(data, default=str))  # of JSON, since its lists become tuples
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = min(problems, key=lambda each: each["type"] != "unexpected_keyword_argument")
        raise ConfigError(_problem(first, data)) from error


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """The settings as nested dictionaries and lists of plain values, the inverse of :func:`build_settings`."""
    return cast(dict[str, Any], _ADAPTER.dump_python(settings, mode="json", by_alias=True))


def settings_to_yaml(settings: Settings) -> str:
    """All settings as YAML, the inverse of :func:`read_settings`."""
    return str(yaml.safe_dump(settings_to_dict(settings), sort_keys=False, allow_unicode=True))


def with_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """A copy with some values replaced.

    Args:
        settings: the settings to copy.
        changes: dotted key to new value, for example ``{"train.iterations": 3}``.

    Raises:
        ConfigError: an unknown key, or a value that does not fit.
    """
    data = settings_to_dict(settings)
    for key, value in changes.items():
        *sections, last = key.split(".")
        section = data
        for name in sections:
            section = section[name]
        section[last] = value
    return build_settings(data)


def read_settings(path: Path) -> Settings:
    """Reads the settings of a run, and imports the modules of its setting ``import``.

    Raises:
        ConfigError: not YAML, or not settings of this version. ExtensionError: a module cannot be imported.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected YAML: {_one_line(error)}; restore the file") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected the settings of a run, got {type(data).__name__}; restore the file")
    try:
        settings = build_settings(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    import_modules(settings.import_)
    return settings


# --- overrides ---------------------------------------------------------------------------------------------------


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed = OverridesParser.create(), []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals and not key.startswith("~"):
            known = f", one of {', '.join(choices(key))}" if key in GROUPS else ""
            raise ConfigError(f"expected key=value, got {text!r}; write {key}=VALUE{known}")
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            raise ConfigError(
                f"{text!r}: the value cannot be read; close its brackets and quotes, and quote text with special "
                f"characters twice, for the shell and for Hydra: \"{key}='{value}'\""
            ) from error
        if parsed[-1].is_sweep_override():  # Hydra's messages about it are for programs with --multirun
            raise ConfigError(
                f"{text!r}: expected one value, got several; write a list as '{key}=[{value}]', and quote text with a "
                f"comma twice, for the shell and for Hydra: \"{key}='{value}'\""
            )
    return parsed


def _line(override: Override, config_dir: Path | None) -> str:
    """The override in Hydra's syntax, in which keys of the user's choice may be added; a method needs no file."""
    if override.key_or_group == "algo" and (name := str(override.value())) not in _files("algo", config_dir):
        return f"algo.name={name}"
    added = override.key_or_group in _FREE or _is_free(override.key_or_group)
    return ("++" if added else "") + str(override.input_line)


def _compose(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    search = [] if config_dir is None else [f"hydra.searchpath=[{config_dir.resolve().as_uri()}]"]
    try:
        with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
            config = compose(config_name="train", overrides=[*search, *overrides])
            return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(_one_line(error)) from error


def _check_choice(override: Override, config_dir: Path | None) -> None:
    """Checks that the group's folder has a file of that name."""
    group, name = override.key_or_group, override.value()
    if name is None and group == "experiment":
        return
    if str(name) not in choices(group, config_dir):
        raise ConfigError(_unknown(group, str(name), config_dir))


def _unknown(group: str, name: str, config_dir: Path | None) -> str:
    known = choices(group, config_dir)
    return f"unknown {group} {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"


def _check_keys(override: Override) -> None:
    if override.is_add() or override.is_delete() or override.is_force_add():
        raise ConfigError(f"{override.input_line}: keys cannot be added or deleted; write key=value with a known key")
    for key in _given([override]):
        if key not in setting_names() and not _is_free(key):
            raise ConfigError(_unknown_key(key))


def _given(parsed: Iterable[Override]) -> tuple[str, ...]:
    return tuple(name for override in parsed for name in _names(override.key_or_group, override.value()))


def _names(key: str, value: Any) -> Iterator[str]:
    """The settings that a value is for: Hydra merges a section's mapping into it."""
    if not isinstance(value, dict) or key in _FREE:
        yield key
        return
    for name, below in value.items():
        yield from _names(f"{key}.{name}", below)


def _is_free(key: str) -> bool:
    return key.startswith(tuple(f"{name}." for name in _FREE))


def _unknown_key(key: str) -> str:
    if key in RENAMED:
        return f"unknown key {key!r}: it was renamed to {RENAMED[key]!r}"
    if key in REPLACED:
        return f"unknown key {key!r}: it was {REPLACED[key]}"
    return f"unknown key {key!r}{did_you_mean(key, [*setting_names(), *GROUPS])}; see configs/train.yaml"


# --- errors -------------------------------------------------------------------------------------------------------


def _problem(error: ErrorDetails, data: Mapping[str, Any]) -> str:
    """One line on an error of pydantic: the setting, what was expected, what was given."""
    path = [str(part) for part in takewhile(lambda part: isinstance(part, str), error["loc"])]  # without list indices
    key = ".".join(path)
    if error["type"] == "unexpected_keyword_argument":
        return _unknown_key(key)
    if error["type"] == "missing" and len(path) == len(error["loc"]):
        return f"{key}: expected a value, got none; set {key}=..."
    kind: Any = Settings
    value: Any = data
    for part in path:
        hints = get_type_hints(kind, include_extras=True)
        kind, value = {key_of_field(name): hint for name, hint in hints.items()}[part], value[part]
    fix = ""
    if isinstance(value, str | int | float) and describe(kind).startswith("a list"):
        fix = f"; write '{key}=[{value}]', quoted for the shell"
    return f"{key}: expected {describe(kind)}, got {value!r}{fix}"


def _origin(key: str, parsed: Sequence[Override], config_dir: Path | None) -> str:
    """Where a wrong value comes from: the default that an override replaced, or the chosen file that sets it."""
    if key in _given(parsed) and key not in _SECTIONS:
        groups = [_line(each, config_dir) for each in parsed if each.key_or_group in GROUPS]
        example = _default_of(key, groups, config_dir)
        return f"; the default is {key}={example}"
    for override in parsed:
        for folder in (CONFIGS, *([] if config_dir is None else [config_dir])):
            path = folder / override.key_or_group / f"{override.value()}.yaml"
            if override.key_or_group in GROUPS and path.exists() and _sets(path, key):
                return f" (in {path})"
    return ""


def _sets(path: Path, key: str) -> bool:
    """Whether a file has a value for the setting."""
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def _default_of(key: str, groups: Sequence[str], config_dir: Path | None) -> str:
    value: Any = _compose(groups, config_dir)
    for part in key.split("."):
        value = value[part]
    text = str(yaml.safe_dump(value, default_flow_style=True, width=10_000))
    return text.removesuffix("...\n").strip().replace(" ", "")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
