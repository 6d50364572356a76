"""Which thoughts quote a plan: words in a row, or characters where words have no spaces."""

from __future__ import annotations

import pytest

from bepa_torchrl.experts.leak import plan_leaks


@pytest.mark.parametrize(
    ("thought", "plan", "leaks"),
    [
        ("now click the big red button", "1. Click the big red button", True),
        ("click button", "1. Click button", False),
        ("the next step of the plan", "1. Press", True),
        ("one two three four nine", "1. one two three four five", False),
        # seven characters, and eight
        ("现在点击文件菜单中了", "1. 点击文件菜单中的保存", False),
        ("现在点击文件菜单中的", "1. 点击文件菜单中的保存", True),
        ("我先打开设置。", "1. 点击文件菜单中的保存", False),
        # a word in katakana is one, however long it is
        ("スプレッドシートを見る", "1. スプレッドシートに書く", False),
        ("次にスプレッドシートの表を選びます", "1. スプレッドシートの表を選びますか", True),
        # 2 words and 5 characters are more than 5 words, 2 and 4 are fewer
        ("点击 Save As 按钮了", "1. 点击 Save As 按钮", False),
        ("点击 Save As 按钮了", "1. 点击 Save As 按钮了吗", True),
        ("메뉴에서 파일을 열고 저장을 눌러요", "1. 메뉴에서 파일을 열고 저장을 눌러요", True),
    ],
)
def test_quotations(thought: str, plan: str, leaks: bool) -> None:
    assert plan_leaks(thought, plan) is leaks
