"""Metrics on text and text files. Bytes are read as UTF-8, what does not decode is replaced."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from typing import Any


def as_text(value: bytes | str) -> str:
    """The text of a file or of a command's output."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def check_include_exclude(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when every string of ``rules["include"]`` stands in the text and none of ``rules["exclude"]`` does."""
    if result is None:
        return 0.0
    text = as_text(result)
    included = all(part in text for part in rules.get("include", ()))
    return float(included and not any(part in text for part in rules.get("exclude", ())))


def check_list(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when each regex of ``rules["expect"]`` matches in some line and none of ``rules["unexpect"]`` in any."""
    if result is None:
        return 0.0
    lines = as_text(result).splitlines()
    found = all(any(re.search(pattern, line) for line in lines) for pattern in rules.get("expect", ()))
    spoilt = any(re.search(pattern, line) for pattern in rules.get("unexpect", ()) for line in lines)
    return float(found and not spoilt)


def compare_text_file(
    actual: bytes | str | None, expected: bytes | str, *, ignore_blanks: bool = False, ignore_case: bool = False
) -> float:
    """1 when both texts are equal; ``ignore_blanks`` makes every run of white space one space and trims the ends."""
    if actual is None:
        return 0.0
    left, right = as_text(actual), as_text(expected)
    if ignore_blanks:
        left, right = " ".join(left.split()), " ".join(right.split())
    if ignore_case:
        left, right = left.lower(), right.lower()
    return float(left == right)


def compare_config(actual: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when the file's whole text is ``rules["expected"]``."""
    return 0.0 if actual is None else float(as_text(actual) == rules["expected"])


def compare_csv(
    actual: bytes | str | None, expected: bytes | str, *, strict: bool = True, ignore_case: bool = False
) -> float:
    """1 when both have the same rows of cells; not ``strict`` trims each cell. (OSWorld compares raw lines.)"""
    if actual is None:
        return 0.0

    def rows(value: bytes | str) -> list[list[str]]:
        text = as_text(value).lower() if ignore_case else as_text(value)
        return [[cell if strict else cell.strip() for cell in row] for row in csv.reader(text.splitlines())]

    return float(rows(actual) == rows(expected))


def diff_text_file(actual: bytes | str | None, expected: bytes | str) -> float:
    """Similarity of the two lists of lines in [0, 1]: twice the matching lines over all lines."""
    if actual is None:
        return 0.0
    left, right = as_text(actual).splitlines(), as_text(expected).splitlines()
    return difflib.SequenceMatcher(a=left, b=right).ratio()


def file_contains(actual: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when every string of ``rules["expected"]`` stands in the file."""
    if actual is None:
        return 0.0
    text = as_text(actual)
    return float(all(part in text for part in rules["expected"]))
