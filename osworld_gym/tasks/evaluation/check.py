"""One metric of a task's evaluator with its getters, and its score by our evaluators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from osworld_gym.errors import did_you_mean
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.osworld import CHOICES
from osworld_gym.tasks.evaluation.sidecar.calling import (
    BrokenResult,
    Limits,
    as_rules,
    call_metric,
    check_file,
    get_result,
)
from osworld_gym.tasks.setup.run import TaskRun

INFEASIBLE = "infeasible"
#: getters of expected values: rules in the task file, gold files, pages of the live web
RULES = frozenset({"rule", "rule_relativeTime"})
GOLD = frozenset({"cloud_file", "pdf_from_url", "googledrive_file"})
NOT_FROM_DESKTOP = RULES | GOLD | {"info_from_website", "gotoRecreationPage_and_get_html_content"}
#: how a metric or getter of the user's own becomes known
OWN = "one of your own is known with --import MODULE, or the setting import=[MODULE]"


@dataclass(frozen=True, slots=True)
class Check:
    """One metric of an evaluator with its two getters: ``func(get(result), get(expected), **options)``."""

    func: str
    result: Mapping[str, Any]
    expected: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def has_gold(self) -> bool:
        """Whether the expected value is the content of gold files."""
        return self.expected is not None and self.expected["type"] in GOLD

    def is_users(self) -> bool:
        """Whether the metric is one that the user has added."""
        return self.func in METRICS and self.func not in METRICS.built_in

    def unknown_to_us(self) -> str:
        """Error text that names the metric, option or getter that our evaluators lack; empty if they have all.

        Also an expected value that our metric requires and the task lacks, or the reverse.
        """
        if self.func not in METRICS:
            known = ", ".join(sorted([*METRICS, INFEASIBLE]))
            near = did_you_mean(self.func, METRICS)
            return f"evaluator.func names unknown metric {self.func!r}{near} ({OWN}); known: {known}"
        for key, config in (("result", self.result), ("expected", self.expected)):
            if config is not None and config["type"] not in GETTERS:
                known = ", ".join(sorted(GETTERS))
                near = did_you_mean(config["type"], GETTERS)
                return f"evaluator.{key} names unknown getter {config['type']!r}{near} ({OWN}); known: {known}"
        return self._unknown_option() or self._misfit()

    def _misfit(self) -> str:
        expected = () if self.expected is None else (None,)
        try:
            signature(METRICS[self.func]).bind(None, *expected, **self.options)
        except TypeError as error:
            whose = "" if self.is_users() else "our "
            given = "without evaluator.expected" if self.expected is None else "with evaluator.expected"
            return f"evaluator: {whose}{self.func} cannot be called {given}: {error}"
        return ""

    def _unknown_option(self) -> str:
        if not self.options:
            return ""
        try:
            signature(METRICS[self.func]).bind_partial(**self.options)
        except TypeError as error:
            return f"evaluator.options: our {self.func} {error}"
        for name, known in CHOICES.get(self.func, {}).items():
            if self.options.get(name, known[0]) not in known:
                given = self.options[name]
                return f"evaluator.options: our {self.func} has {name} {', '.join(known)}, not {given!r}"
        return ""


def our_score(run: TaskRun, check: Check, limits: Limits | None = None) -> float:
    """The score by our getters and metric; 0 when the result is missing.

    Args:
        limits: limits on the files that are read from the desktop; None: they are not checked.

    Raises:
        BrokenResult: what was read from the desktop cannot be read, or exceeds a limit.
        Exception: whatever the getters and the metric raise, see ``sidecar/calling``.
    """
    try:
        result = _read(run, check.result, limits)
    except FileNotFoundError:
        return 0.0
    if result is None:
        return 0.0
    expected = _expected(run, check, limits)
    return call_metric(METRICS[check.func], result, expected, check.options, gold=check.has_gold())


def _read(run: TaskRun, config: Mapping[str, Any], limits: Limits | None) -> Any:
    """The value of a getter that reads the desktop."""
    value = get_result(lambda: GETTERS[config["type"]](run, config))
    for file in value if isinstance(value, list) else [value]:
        if limits is not None and isinstance(file, bytes):
            check_file(file, limits)
    return value


def _expected(run: TaskRun, check: Check, limits: Limits | None) -> tuple[Any, ...]:
    """The expected value as a tuple of 0 or 1 items. One that is read from the desktop may be broken by the policy."""
    if check.expected is None:
        return ()
    config, kind = check.expected, check.expected["type"]
    if kind not in NOT_FROM_DESKTOP:
        try:
            return (_read(run, config, limits),)
        except FileNotFoundError as error:
            raise BrokenResult(f"{error} is not on the desktop") from error
    value = GETTERS[kind](run, config)
    return (as_rules(value) if kind in RULES else value,)
