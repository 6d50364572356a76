"""Shared by both environments: turns a provider into a desktop factory, and a suite's name into its tasks."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from osworld_gym.counts import check_count
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.registry import make_desktop, provider_class
from osworld_gym.errors import TaskError
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.registry import SUITES, load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.tasks.usable import not_runnable, not_supported, usable

logger = logging.getLogger(__name__)

Provider = str | Callable[[], Desktop]


def desktop_factory(provider: Provider, options: Mapping[str, Any] | None) -> Callable[[], Desktop]:
    """A function that creates one desktop.

    Args:
        provider: a name of ``registry.PROVIDERS``, or such a function, which is returned unchanged.
        options: keyword arguments of the named provider's class.

    Raises:
        TypeError: the provider is neither a name nor a function, or the options are no mapping.
        ValueError: unknown provider, or options together with a function (bind them to it instead).
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"provider_options must be a mapping of the provider's arguments, or None; got {options!r:.80}")
    if isinstance(provider, str):
        provider_class(provider)
        return partial(make_desktop, provider, **(options or {}))
    if not callable(provider):
        raise TypeError(
            f"provider must be a name, as 'sim', or a function that creates a desktop, got {provider!r}; fix, for an "
            "object that is a desktop: provider=lambda: desktop"
        )
    if options:
        raise ValueError(
            f"provider_options {sorted(options)} require a provider's name, got a function; bind them to it"
        )
    return provider


def choose_suite(suite: str | Path | Suite | None, provider: Provider) -> Suite:
    """The suite, given directly, by name or by folder; None: the provider's default suite.

    Raises:
        TypeError: the suite is none of these.
        TaskError: unknown suite, or None for a provider without a default suite.
    """
    if isinstance(suite, Suite):
        return suite
    if suite is not None and not isinstance(suite, str | PathLike):
        raise TypeError(
            f"suite must be a Suite, its name or a folder, got {suite!r:.80}; fix, for a function that returns one: "
            'suite=function(); for tasks: suite=Suite("mine", tuple(tasks), {})'
        )
    if suite is not None:
        return load_suite(suite)
    if isinstance(provider, str) and provider in SUITES:
        return load_suite(provider)
    raise TaskError(f"provider {provider!r} has no default suite: name one with suite=; known: {', '.join(SUITES)}")


def choose_tasks(
    suite: str | Path | Suite | None,
    split: str,
    provider: Provider,
    *,
    runnable: bool = False,
    options: Mapping[str, Any] | None = None,
) -> tuple[Suite, tuple[Task, ...]]:
    """The suite and the tasks of its split, without those that cannot be used: a warning counts them by reason.

    Args:
        suite: as of :func:`choose_suite`.
        split: the name of the split.
        provider: as of :func:`desktop_factory`.
        runnable: False: unsupported tasks cannot be used; True: nor can those that cannot run on this machine with this
            provider, which must be a name then.
        options: keyword arguments of the named provider's class.

    Raises:
        TypeError: the suite or the split is of another type.
        ValueError: ``runnable`` with a provider that is a function.
        TaskError: unknown suite or split, or a split without tasks that can be used.
    """
    if not isinstance(split, str):
        raise TypeError(f"split must be a name, got {split!r}; fix, for every task: split='all'")
    if runnable and not isinstance(provider, str):
        raise ValueError("runnable=True requires a provider's name, got a function: nobody knows what can run on it")
    chosen = choose_suite(suite, provider)
    every = chosen.split(split)
    if not every:
        raise TaskError(f"split {split!r} of suite {chosen.name!r} has no task")
    against = not_runnable(every, str(provider), options or {}) if runnable else not_supported(every)
    tasks, said = usable(chosen, every, against, f"split {split!r} of suite {chosen.name!r}")
    if not tasks:
        raise TaskError(said)
    if said:
        logger.warning("%s", said)
    return chosen, tasks


def check_retries(name: str, given: int) -> None:
    """Checks a number of retries.

    Raises:
        ValueError: it is not an integer of at least 0; the message begins with ``name``.
    """
    check_count(name, given, 0, "the number of further attempts")


def as_seed(name: str, given: object) -> int:
    """A seed as int; NumPy's and torch's integers are seeds, too.

    Raises:
        TypeError: it is no integer. ValueError: it is negative. The message begins with ``name``.
    """
    try:
        seed = -1 if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{name}: expected an integer >= 0, got {given!r}") from error
    if seed < 0:
        raise ValueError(f"{name}: expected an integer >= 0, got {given!r}")
    return seed
