"""Arguments that several actions of ``bepa experts`` have."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bepa_torchrl.commands.arguments import check_new
from bepa_torchrl.failures import BAD_INPUT, exit_code

if TYPE_CHECKING:
    from bepa_torchrl.endpoint import ChatModel
    from bepa_torchrl.experiment.settings import Settings

_SETTING = re.compile(r"[\w.+~@]+=")


def add_job(parser: argparse.ArgumentParser, out: str, *, sources: str = "+") -> None:
    """Adds the sources, the settings, ``--config-dir`` and ``--out``.

    Args:
        parser: the parser of the action.
        out: what the folder is.
        sources: how many arguments there are, as argparse's ``nargs``.
    """
    text = "NAME:FOLDER or FOLDER of expert logs or traces, the preferred first; or key=value, see configs/train.yaml"
    parser.add_argument("overrides", nargs=sources, metavar="SOURCE|key=value", help=text)
    parser.add_argument("--config-dir", type=Path, help="a folder with further env/, policy/, algo/, experiment/ files")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=out)


#: of a model's options; the parser has None in their place, to tell what was given
_DEFAULTS = {"at-once": 8, "timeout": 120.0, "retries": 5}
_ANSWER_TOKENS = {"": 1024, "judge-": 2048}  #: prefix of a model's options → default of ``max-tokens``
_OPTIONS = ("model", "url", "at-once", "price", "max-tokens", "timeout", "retries", "reasoning")


def add_endpoint(parser: argparse.ArgumentParser, *, prefix: str = "", title: str = "a language model") -> None:
    """Adds what is asked of a model behind an endpoint.

    Args:
        parser: the parser of the action.
        prefix: the prefix of the options' names, such as ``judge-``; among a policy's (``policy-``) is no maximum of
            tokens, which is a setting.
        title: the title of their group.
    """
    without = "" if prefix else "; default: by rule"
    group = parser.add_argument_group(f"{title} (needs pip install 'osworld-gym[endpoint]'){without}")
    group.add_argument(f"--{prefix}model", metavar="NAME", help="name of the model at the endpoint")
    group.add_argument(f"--{prefix}url", help="an OpenAI-compatible API, http://HOST:PORT/v1 (default: OpenAI's)")
    group.add_argument(f"--{prefix}at-once", type=int, metavar="N", help="maximum number of open requests (default: 8)")
    group.add_argument(
        f"--{prefix}price", metavar="IN,OUT", help="US dollars per million tokens of prompts and of answers"
    )
    if prefix in _ANSWER_TOKENS:
        text = f"maximum tokens of an answer (default: {_ANSWER_TOKENS[prefix]})"
        group.add_argument(f"--{prefix}max-tokens", type=int, metavar="N", help=text)
    text = "seconds until a request counts as failed (default: 120)"
    group.add_argument(f"--{prefix}timeout", type=float, metavar="S", help=text)
    text = "further attempts after a failed request (default: 5)"
    group.add_argument(f"--{prefix}retries", type=int, metavar="N", help=text)
    group.add_argument(
        f"--{prefix}reasoning", action="store_true", help="it is a reasoning model of OpenAI's (no temperature)"
    )


def given_of_endpoint(options: argparse.Namespace, prefix: str = "") -> list[str]:
    """The names, with their prefix, of the options of :func:`add_endpoint` that were given."""
    values = {f"{prefix}{name}": getattr(options, f"{prefix}{name}".replace("-", "_"), None) for name in _OPTIONS}
    return [name for name, value in values.items() if value is not None and value is not False]


def sources_and_settings(options: argparse.Namespace) -> tuple[list[str], Settings]:
    """The sources, and the settings. Raises ConfigError as :func:`load_config`."""
    from bepa_torchrl.experiment.config import load_config

    overrides = [each for each in options.overrides if _SETTING.match(each)]
    settings = load_config(overrides, config_dir=options.config_dir)
    return [each for each in options.overrides if each not in overrides], settings


def chat_model(
    options: argparse.Namespace, cache: Path | None, *, prefix: str = "", **sampling: Any
) -> ChatModel | None:
    """The model of ``--model``; None without it.

    Args:
        options: with those of :func:`add_endpoint`.
        cache: folder of its answers; None: they are not kept.
        prefix: that of :func:`add_endpoint`.
        sampling: ``max_tokens`` where there is no such option, ``temperature``, ``asks``.

    Raises:
        ValueError: an option is out of range, or has no effect. EndpointError: there is no key.
    """
    from bepa_torchrl.endpoint import ChatModel, Endpoint

    def value(name: str) -> Any:
        found = getattr(options, f"{prefix}{name}".replace("-", "_"))
        return _DEFAULTS.get(name) if found is None else found

    if value("model") is None:
        if given := [*given_of_endpoint(options, prefix), *(["images"] if getattr(options, "images", False) else [])]:
            option = f"--{given[0]}"
            raise ValueError(f"{option} is read with --{prefix}model NAME only; add it, or leave {option} out")
        return None
    if "max_tokens" not in sampling:
        most = value("max-tokens")
        sampling["max_tokens"] = _ANSWER_TOKENS[prefix] if most is None else most
    endpoint = Endpoint(
        value("model"),
        value("url"),
        timeout=value("timeout"),
        retries=value("retries"),
        at_once=value("at-once"),
        price=_price(value("price"), f"--{prefix}price"),
        reasoning=value("reasoning"),
        **sampling,
    )
    return ChatModel(endpoint, cache)


def check_job_folder(folder: Path) -> None:
    """Checks that a folder is new, or one that the same command has begun. Raises ValueError if it is neither."""
    if not folder.is_dir():
        check_new(folder, "--out")


def beside(folder: Path, name: str) -> Path:
    """The folder beside ``--out`` that keeps what is finished."""
    return folder.with_name(f"{folder.name}.{name}")


@contextmanager
def noting(options: argparse.Namespace) -> Iterator[None]:
    """Adds the command line, which goes on where it was interrupted, to an exception that ends it.

    Bad input gets none: the same command would be refused again.
    """
    try:
        yield
    except BaseException as error:
        if exit_code(error) != BAD_INPUT:
            error.add_note(f"continue with: {shlex.join(['bepa', *options.arguments])}")
        raise


def _price(text: str | None, option: str) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        prompts, answers = (float(each) for each in text.split(","))
        if not (0 <= prompts < math.inf and 0 <= answers < math.inf):
            raise ValueError("no price")
    except ValueError:
        raise ValueError(f"{option}: expected IN,OUT, two numbers such as 2.5,10, got {text!r}") from None
    return prompts, answers
