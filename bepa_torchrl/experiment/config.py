"""Reads the settings: Hydra's YAML files and ``key=value`` overrides become one typed, frozen :class:`Settings`.

This is the only module that handles Hydra and OmegaConf objects. It does not import torch.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bepa_torchrl.experiment.methods import METHODS
from bepa_torchrl.experiment.settings import Settings
from osworld_gym.action_text import action_text, check_preset
from osworld_gym.errors import did_you_mean
from osworld_gym.extensions import import_modules
from osworld_gym.uitars.history import check_history

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
_FREE = ("env.options", "policy.engine.arguments")
_SECTIONS = {field.name for field in fields(Settings) if is_dataclass(get_type_hints(Settings)[field.name])}
_MISFIT = object()


class ConfigError(ValueError):
    """A setting is invalid. The message is one line: what was expected, what was given, how to fix it."""


def load_config(overrides: Sequence[str] = (), *, config_dir: Path | None = None) -> Settings:
    """The resolved settings. The modules of the setting ``import`` are imported, before names are checked.

    Args:
        overrides: ``key=value`` as on Hydra's command line.
        config_dir: a user's folder with further ``env/``, ``policy/``, ``algo/`` or ``experiment/`` files.

    Raises:
        ConfigError: an unknown key or file, a value of the wrong type or outside its choices, or a missing folder.
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
            _check_key(override)
    data = _compose([_line(override, config_dir) for override in parsed], config_dir)
    try:
        settings = build_settings(data)
    except ConfigError as error:
        key = str(error).split(":", 1)[0]
        if key not in {override.key_or_group for override in parsed} - _SECTIONS:
            raise
        example = _default_of(key, [_line(o, config_dir) for o in parsed if o.key_or_group in GROUPS], config_dir)
        raise ConfigError(f"{error}; the default is {key}={example}") from error
    import_modules(settings.import_)
    for key, names in (("", [settings.algo.name]), ("compare: ", settings.compare)):
        for name in names:
            if name not in METHODS:
                raise ConfigError(f"{key}{_unknown('algo', name, config_dir)}")
    _check_method(settings, [override.key_or_group for override in parsed])
    _check_token_budget(settings)
    check_rollout(settings)
    try:
        action_text(settings.policy.action_text)
    except ValueError as error:
        raise ConfigError(f"policy.{error}") from error
    try:
        check_preset(settings.policy.action_text, settings.policy.preset)
    except ValueError as error:
        raise ConfigError(f"policy.preset: {error}") from error
    if settings.policy.lora.adapter is not None and settings.policy.lora.rank is None:
        raise ConfigError("policy.lora.adapter requires adapters; set policy.lora.rank to that of the saved ones")
    try:
        check_history(settings.policy.history, settings.policy.history_images, preset=settings.policy.preset)
    except ValueError as error:
        raise ConfigError(f"policy.history: {error}") from error
    return settings


def _check_method(settings: Settings, given: Sequence[str]) -> None:
    """Checks settings that only some methods or aggregations read."""
    luffy = settings.algo.name == "luffy"
    for key in ("algo.preset", "algo.gamma"):
        if key in given and not luffy:
            raise ConfigError(f"{key} is read by algo=luffy only, got algo={settings.algo.name}; leave it out")
    expert = settings.expert
    if expert.selfroll_budget is not None and "expert.selfroll_attempts" in given and not expert.reroll_every:
        raise ConfigError("expert.selfroll_budget is used instead of expert.selfroll_attempts; leave one of them out")
    if expert.reroll_stale is not None and not expert.reroll_every:
        raise ConfigError("expert.reroll_stale is read where tasks are self-rolled again; set expert.reroll_every=N")
    length = settings.loss.max_length
    released = luffy and settings.algo.preset == "released"
    aggregation = "algo.preset=released" if released else f"loss.aggregation={settings.loss.aggregation}"
    sums = released or settings.loss.aggregation == "sum_norm"
    if sums and length is None:
        raise ConfigError(f"{aggregation} requires the longest episode in units; set loss.max_length=N")
    if not sums and length is not None:
        raise ConfigError(f"loss.max_length={length} is read with loss.aggregation=sum_norm only, got {aggregation}")


def _check_token_budget(settings: Settings) -> None:
    """Checks that the longest possible row fits into a micro-batch, before any rollout is collected.

    Not when a run is resumed: after running out of memory the budget may have to be lower than that.
    """
    policy, budget = settings.policy, settings.train.max_tokens
    longest = policy.max_prompt_tokens + policy.max_new_tokens
    if longest > budget and not settings.resume:
        raise ConfigError(
            f"train.max_tokens={budget} is less than the longest row, policy.max_prompt_tokens="
            f"{policy.max_prompt_tokens} + policy.max_new_tokens={policy.max_new_tokens}; "
            f"set train.max_tokens={longest} or lower policy.max_prompt_tokens"
        )


def check_rollout(settings: Settings) -> None:
    """Raises ConfigError if the sampler would compute the old log-probs, or be sent adapters that it cannot get."""
    if settings.policy.rollout == "vllm" and settings.policy.engine.adapters == "separate":
        if settings.policy.lora.rank is None:
            raise ConfigError("policy.engine.adapters=separate requires adapters; set policy.lora.rank, or auto")
        if settings.collect.mode == "async":
            raise ConfigError(
                "policy.engine.adapters=separate requires collect.mode=sync, since rollout services get them merged; "
                "set auto"
            )
    if settings.train.old_log_probs == "all":
        return
    for setting, given, without in (
        ("policy.rollout", settings.policy.rollout, "transformers"),
        ("loss.rollout_correction", settings.loss.rollout_correction, "off"),
    ):
        if given != without:
            raise ConfigError(
                f"{setting}={given} requires the trainer's own old log-probs; set train.old_log_probs=all, "
                f"or {setting}={without}"
            )


def choices(group: str, config_dir: Path | None = None) -> list[str]:
    """Names of a group's files, and of methods; sorted."""
    return sorted({*_files(group, config_dir), *(METHODS if group == "algo" else ())})


def _files(group: str, config_dir: Path | None) -> set[str]:
    folders = [CONFIGS / group, *([] if config_dir is None else [config_dir / group])]
    return {path.stem for folder in folders for path in folder.glob("*.yaml")}


def setting_names(cls: type = Settings, prefix: str = "") -> Iterator[str]:
    """Every dotted name of a setting, sections included."""
    for name, kind in get_type_hints(cls).items():
        yield f"{prefix}{_key(name)}"
        if is_dataclass(kind):
            yield from setting_names(cast(type, kind), f"{prefix}{name}.")


def build_settings(data: Mapping[str, Any]) -> Settings:
    """Builds typed settings from nested mappings of plain values, as read from YAML or JSON.

    Raises:
        ConfigError: an unknown or missing key, a value of the wrong type or outside its choices.
    """
    return cast(Settings, _build(Settings, data, ""))


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """The settings as nested dictionaries and lists of plain values, the inverse of :func:`build_settings`."""
    return {_key(name): _plain(value) for name, value in asdict(settings).items()}


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
        ConfigError: not YAML, or not all settings of this version. ExtensionError: a module cannot be imported.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
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


def _check_key(override: Override) -> None:
    key = override.key_or_group
    if override.is_add() or override.is_delete() or override.is_force_add():
        raise ConfigError(f"{override.input_line}: keys cannot be added or deleted; write key=value with a known key")
    if key not in setting_names() and not _is_free(key):
        raise ConfigError(_unknown_key(key))


def _is_free(key: str) -> bool:
    return key.startswith(tuple(f"{name}." for name in _FREE))


def _unknown_key(key: str) -> str:
    if key in RENAMED:
        return f"unknown key {key!r}: it was renamed to {RENAMED[key]!r}"
    if key in REPLACED:
        return f"unknown key {key!r}: it was {REPLACED[key]}"
    return f"unknown key {key!r}{did_you_mean(key, [*setting_names(), *GROUPS])}; see configs/train.yaml"


def _default_of(key: str, groups: Sequence[str], config_dir: Path | None) -> str:
    value: Any = _compose(groups, config_dir)
    for part in key.split("."):
        value = value[part]
    text = str(yaml.safe_dump(value, default_flow_style=True, width=10_000))
    return text.removesuffix("...\n").strip().replace(" ", "")


# --- plain values to typed ones -----------------------------------------------------------------------------------


def _build(cls: type, data: Mapping[str, Any], prefix: str) -> Any:
    fields_by_key = {_key(name): (name, kind) for name, kind in get_type_hints(cls, include_extras=True).items()}
    for name in data:
        if name not in fields_by_key:
            raise ConfigError(_unknown_key(f"{prefix}{name}"))
    missing = [name for name in fields_by_key if name not in data]
    if missing:
        raise ConfigError(f"{prefix}{missing[0]}: expected a value, got none; set {prefix}{missing[0]}=...")
    return cls(**{name: _convert(kind, data[key], f"{prefix}{key}") for key, (name, kind) in fields_by_key.items()})


def _key(field: str) -> str:
    """The key of a field: ``import`` is a keyword of Python, so that its field is ``import_``."""
    return field.removesuffix("_")


def _convert(kind: Any, value: Any, key: str) -> Any:
    """The value as the type of its field.

    Raises:
        ConfigError: it does not fit.
    """
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _build(cast(type, kind), value, f"{key}.")
    converted = _fit(kind, value)
    if converted is _MISFIT:
        raise ConfigError(f"{key}: expected {_describe(kind)}, got {value!r}")
    return converted


def _fit(kind: Any, value: Any) -> Any:
    """The converted value, or ``_MISFIT`` if it has another type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        fitted = _fit(args[0], value)
        return fitted if fitted is not _MISFIT and fitted in args[1] else _MISFIT
    if origin in (Union, types.UnionType):
        fitted = (_fit(arg, value) for arg in args)
        return next((each for each in fitted if each is not _MISFIT), _MISFIT)
    if origin is Literal:
        return value if value in args else _MISFIT
    if origin is tuple:
        return _fit_tuple(args, value)
    if kind is types.NoneType:
        return None if value is None else _MISFIT
    if origin is not None:  # Mapping[str, Any]
        return dict(value) if isinstance(value, Mapping) else _MISFIT
    if isinstance(value, bool) or kind is bool:
        return value if isinstance(value, bool) and kind is bool else _MISFIT
    if kind is float or kind is str:
        accepted = int | float if kind is float else str | int | float
        return kind(value) if isinstance(value, accepted) else _MISFIT
    return value if isinstance(value, kind) else _MISFIT


def _fit_tuple(args: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _MISFIT
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    if len(kinds) != len(value):
        return _MISFIT
    fitted = tuple(_fit(kind, each) for kind, each in zip(kinds, value, strict=True))
    return _MISFIT if _MISFIT in fitted else fitted


def _describe(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_describe(args[0])} {args[1]}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(arg) for arg in args)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        return "a list" if args[-1] is Ellipsis else f"a list of {len(args)}, each {_describe(args[0])}"
    if origin is not None:
        return "a mapping"
    if is_dataclass(kind):
        names = ", ".join(field.name for field in fields(kind))
        return f"a section with the keys {names}"
    plain = {bool: "true or false", int: "an integer", float: "a number", str: "text", types.NoneType: "null"}
    return plain[kind]


def _plain(value: Any) -> Any:
    """Nested mappings and lists for YAML."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
