"""JSON lines with texts of models in them, and after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from bepa_torchrl.storage.json_lines import RecordError, json_line, read_lines

LINES = [{"text": "one\u2028two\x85three\r\n"}, {"text": "é"}]


def test_texts_may_have_any_line_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(map(json_line, LINES)), encoding="utf-8")
    assert read_lines(path) == LINES


def test_half_a_character_is_kept_as_its_escape(tmp_path: Path) -> None:
    """Such as one in an error message of a desktop, which JSON may have and UTF-8 may not."""
    path = tmp_path / "a.jsonl"
    line = {"problem": "no \ud83d", "whole": "\U0001f600"}
    path.write_text(json_line(line), encoding="utf-8")
    assert read_lines(path) == [line]


def test_a_last_line_that_is_cut_within_a_character_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = "".join(map(json_line, LINES)).encode()
    path.write_bytes(whole[: whole.index("é".encode()) + 1])
    assert read_lines(path) == LINES[:1]
    path.write_bytes(b"{\n" + whole)
    with pytest.raises(RecordError, match="line 1 is damaged"):
        read_lines(path)


def test_a_line_that_is_no_object_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(RecordError, match=r"line 2 is damaged \(expected a JSON object, got list\); restore the file"):
        read_lines(path)
