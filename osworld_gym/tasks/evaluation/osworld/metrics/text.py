r"""Metrics on text and text files. Bytes are read as UTF-8, line ends as ``\n``; other bytes are no text."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from osworld_gym.tasks.evaluation.osworld.metrics.rules import likeness, record_matches
from osworld_gym.tasks.evaluation.parsing import check_lines
from osworld_gym.tasks.evaluation.sidecar.calling import RuleError

_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")


def as_text(value: bytes | str) -> str:
    """The text of a file or of a command's output.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
        Exhausted: it has too many lines.
    """
    if isinstance(value, str):
        return check_lines(value)
    return check_lines(value.decode().replace("\r\n", "\n").replace("\r", "\n"))


def check_include_exclude(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when every string of ``rules["include"]`` is in the text and none of ``rules["exclude"]`` is."""
    if result is None:
        return 0.0
    text = as_text(result)
    included = all(part in text for part in rules.get("include", ()))
    return float(included and not any(part in text for part in rules.get("exclude", ())))


def check_list(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when each regex of ``rules["expect"]`` matches in some line and none of ``rules["unexpect"]`` in any."""
    if result is None:
        return 0.0
    lines = list(io.StringIO(as_text(result)))  # with line ends, as from a file
    included = all(any(re.search(pattern, line) for line in lines) for pattern in rules.get("expect", ()))
    excluded = any(re.search(pattern, line) for pattern in rules.get("unexpect", ()) for line in lines)
    return float(included and not excluded)


def compare_text_file(
    actual: bytes | str | None, expected: bytes | str, *, ignore_blanks: bool = False, ignore_case: bool = False
) -> float:
    """1 when both texts are equal; ``ignore_blanks`` replaces each run of white space by a space and trims the ends."""
    if actual is None:
        return 0.0
    left, right = as_text(actual), as_text(expected)
    if ignore_blanks:
        left, right = " ".join(left.split()), " ".join(right.split())
    if ignore_case:
        left, right = left.lower(), right.lower()
    return float(left == right)


def compare_config(
    actual: bytes | str | None, rules: Mapping[str, Any], *, containment_ok: bool = False, **options: Any
) -> float:
    """1 when the file's text is ``rules["expected"]``.

    ``containment_ok``: 1 when the file contains it, as text, or by members if both are JSON. OSWorld's tasks of 2026
    have this option, and its release ignores it. Other options are ignored, as in OSWorld.
    """
    del options
    if actual is None:
        return 0.0
    text, expected = as_text(actual), rules["expected"]
    if not containment_ok:
        return float(text == expected)
    try:
        return float(bool(expected) and _contains(json.loads(text), json.loads(expected)))
    except ValueError:
        return float(bool(expected) and expected.strip() in text)


def _contains(value: Any, wanted: Any) -> bool:
    """Whether every member of ``wanted``, at any depth of its objects, is in ``value``; lists are compared whole."""
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    return isinstance(value, dict) and all(key in value and _contains(value[key], wanted[key]) for key in wanted)


def compare_answer(actual: str | None, rules: Mapping[str, Any]) -> float:
    """1 when the text is ``rules["expected"]``."""
    return float(bool(actual) and actual == rules["expected"])


def compare_csv(
    actual: bytes | str | None,
    expected: bytes | str | Sequence[bytes],
    *,
    strict: bool = True,
    ignore_case: bool = False,
) -> float:
    """1 when both (or the result and one of several ``expected``) have equal lines; ``strict=False`` trims them.

    What is not UTF-8 is read as Latin-1, each by itself.
    """
    if actual is None:
        return 0.0

    def lines(value: bytes | str) -> list[str]:
        texts = _any_text(value).splitlines()
        texts = texts if strict else [line.strip() for line in texts]
        return [line.lower() for line in texts] if ignore_case else texts

    golds = [expected] if isinstance(expected, bytes | str) else list(expected)
    return float(any(lines(actual) == lines(gold) for gold in golds))


def _any_text(value: bytes | str) -> str:
    try:
        return as_text(value)
    except UnicodeDecodeError:
        assert isinstance(value, bytes)
        return value.decode("latin-1")


def check_csv(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when each record of ``rules["expect"]`` matches some row and no record of ``rules["unexpect"]`` matches any."""
    if result is None:
        return 0.0
    rows = list(csv.DictReader(io.StringIO(as_text(result))))
    included = all(any(record_matches(row, wanted) for row in rows) for wanted in rules.get("expect", ()))
    return float(included and not any(record_matches(row, bad) for row in rows for bad in rules.get("unexpect", ())))


def diff_text_file(actual: bytes | str | None, expected: bytes | str) -> float:
    """Similarity of the two lists of lines in [0, 1]: twice the matching lines over all lines."""
    if actual is None:
        return 0.0
    left, right = as_text(actual).splitlines(), as_text(expected).splitlines()
    return difflib.SequenceMatcher(a=left, b=right).ratio()


def file_contains(actual: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when every string of ``rules["expected"]`` is in the file."""
    if actual is None:
        return 0.0
    text = as_text(actual)
    return float(all(part in text for part in rules["expected"]))


def fuzzy_match(result: str, rules: Mapping[str, Any]) -> float:
    """Similarity of the text and ``rules["expected"]`` in [0, 1]."""
    return likeness(result, rules["expected"])


def check_line_number(actual: bytes | None, rules: Mapping[str, Any]) -> float:
    """1 when ``rules["expected"]`` lines contain a time of day ``HH:MM:SS``."""
    if actual is None:
        return 0.0
    return float(sum(bool(_CLOCK.search(line)) for line in io.StringIO(as_text(actual))) == int(rules["expected"]))


def compare_terminal_and_txt(actual: bytes | None, terminal: str | None) -> float:
    """1 when the file's text is what the terminal shows."""
    return float(bool(actual) and bool(terminal) and as_text(actual or b"") == terminal)


def compare_python_pure_text(actual: bytes | None, expected: bytes | None) -> float:
    """1 when both programs have the same non-blank lines, ignoring shebang and coding lines at the top."""
    if actual is None or expected is None:
        return 0.0
    return float(_program(as_text(actual)) == _program(as_text(expected)))


def _program(text: str) -> list[str]:
    lines = text.splitlines()
    skip = 0
    while skip < min(3, len(lines)) and lines[skip].strip().startswith(("#!", "# -*- coding:", "# coding")):
        skip += 1
    return [line.expandtabs(4).rstrip() for line in lines[skip:] if line.strip()]


def is_extension_installed(actual: str, rules: Mapping[str, Any]) -> float:
    """1 when ``rules["expected"]`` is in the text (``type`` ``contain``), or is not (``not_contain``).

    Raises:
        RuleError: unknown ``type``.
    """
    if rules["type"] not in ("contain", "not_contain"):
        raise RuleError(f"is_extension_installed: type must be 'contain' or 'not_contain', got {rules['type']!r}")
    return float((rules["expected"] in actual) == (rules["type"] == "contain"))
