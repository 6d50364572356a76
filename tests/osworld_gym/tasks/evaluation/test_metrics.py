"""Every metric on inputs whose score is worked out by hand."""

import pytest

from osworld_gym.tasks.evaluation.osworld.metrics import structured, text, values


def test_values():
    assert values.exact_match("on\n", {"expected": "on\n"}) == 1.0
    assert values.exact_match("on", {"expected": "on\n"}) == 0.0
    assert values.match_in_list("b", {"expected": ["a", "b"]}) == 1.0
    assert values.match_in_list("c", {"expected": ["a", "b"]}) == 0.0
    assert values.is_in_list(["a", "b"], {"expected": "a"}) == 1.0
    assert values.is_in_list(["ab"], {"expected": "a"}) == 0.0
    assert values.is_in_list(None, {"expected": "a"}) == 0.0


def test_literal_match():
    assert values.literal_match(3, "3") == 1.0
    assert values.literal_match("Yes", {"expected": "yes"}) == 0.0
    assert values.literal_match("Yes", {"expected": "yes"}, ignore_case=True) == 1.0
    assert values.literal_match(["a", 1], ["a", "1"], type="list") == 1.0
    assert values.literal_match(["1", "a"], ["a", "1"], type="list") == 0.0
    with pytest.raises(ValueError, match="'str' or 'list', got 'set'"):
        values.literal_match("a", "a", type="set")


def test_check_include_exclude():
    rules = {"include": ["alpha", "beta"], "exclude": ["error"]}
    assert text.check_include_exclude("alpha and beta", rules) == 1.0
    assert text.check_include_exclude("alpha", rules) == 0.0
    assert text.check_include_exclude(b"alpha beta error", rules) == 0.0
    assert text.check_include_exclude("", {"exclude": ["x"]}) == 1.0


def test_check_list():
    rules = {"expect": [r"^a\d$", "b"], "unexpect": ["^#"]}
    assert text.check_list("a1\nxbx\n", rules) == 1.0
    assert text.check_list("a12\nb\n", rules) == 0.0  # ^a\d$ matches no line
    assert text.check_list("a1\nb\n# c\n", rules) == 0.0


def test_compare_text_file():
    assert text.compare_text_file(b"Milk\nEggs\n", b"Milk\nEggs\n") == 1.0
    assert text.compare_text_file(b"Milk\nEggs", b"Milk\nEggs\n") == 0.0
    assert text.compare_text_file(b" Milk\n\n Eggs", b"Milk Eggs\n", ignore_blanks=True) == 1.0
    assert text.compare_text_file(b"milk", b"MILK") == 0.0
    assert text.compare_text_file(b"milk", b"MILK", ignore_case=True) == 1.0
    assert text.compare_text_file("grüße".encode(), "grüße") == 1.0


def test_compare_config_and_file_contains():
    assert text.compare_config(b"a=1\n", {"expected": "a=1\n"}) == 1.0
    assert text.compare_config(b"a=1\nb=2\n", {"expected": "a=1\n"}) == 0.0
    assert text.file_contains(b"a=1\nb=2\n", {"expected": ["a=1", "b=2"]}) == 1.0
    assert text.file_contains(b"a=1\n", {"expected": ["a=1", "b=2"]}) == 0.0


def test_compare_csv():
    assert text.compare_csv(b"a,b\n1,2\n", b"a,b\r\n1,2\r\n") == 1.0
    assert text.compare_csv(b'a,"b"\n', b"a,b\n") == 0.0  # lines are compared as text, as in OSWorld
    assert text.compare_csv(b" a,b \n", b"a,b\n") == 0.0
    assert text.compare_csv(b" a,b \n", b"a,b\n", strict=False) == 1.0
    assert text.compare_csv(b"A,b\n", b"a,B\n", ignore_case=True) == 1.0
    for gold in ("Zoë,1\n".encode(), "Zoë,1\n".encode("latin-1")):  # each is read by itself
        assert text.compare_csv("Zoë,1\n".encode("latin-1"), gold) == 1.0


def test_diff_text_file_is_twice_the_matches_over_all_lines():
    # 2 of 3 lines match in both: 2*2/(3+3)
    assert text.diff_text_file(b"a\nb\nc\n", b"a\nx\nc\n") == pytest.approx(4 / 6)
    assert text.diff_text_file(b"a\n", b"a\n") == 1.0
    assert text.diff_text_file(b"a\n", b"b\n") == 0.0


@pytest.mark.parametrize(
    ("rule", "score"),
    [
        ({"key": ["a", "b"], "method": "eq", "ref": 2}, 1.0),
        ({"key": ["a", "b"], "method": "lt", "ref": 2}, 0.0),
        ({"key": ["c", 1], "method": "re", "ref": "^wor"}, 1.0),
        ({"key": ["c", 1], "method": "re", "ref": "^WOR"}, 0.0),
        ({"key": ["c", 1], "method": "re.I", "ref": "^WOR"}, 1.0),
        ({"key": ["a", "b"], "method": "approx:0.5", "ref": 2.4}, 1.0),
        ({"key": ["a", "b"], "method": "approx:0.3", "ref": 2.4}, 0.0),
        ({"key": ["a", "z"], "method": "eq", "ref": None}, 0.0),
        ({"key": ["c", 7], "method": "ne", "ref": 1}, 0.0),
    ],
)
def test_check_json_rule(rule, score):
    document = b'{"a": {"b": 2}, "c": ["hello", "world"]}'
    assert structured.check_json(document, {"expect": [rule]}) == score
    missing = rule["key"][-1] in ("z", 7)  # None, as in OSWorld, so that both rules match
    assert structured.check_json(document, {"unexpect": [rule]}) == (0.0 if missing else 1.0 - score)


def test_check_json_unknown_method_names_the_known():
    with pytest.raises(ValueError, match=r"'near' is unknown; known: eq, ne"):
        structured.check_json("{}", {"expect": [{"key": [], "method": "near", "ref": 1}]})


def test_check_json_settings():
    rules = {"expected": {"editor.tabSize": 2}}
    assert structured.check_json_settings(b'{"editor.tabSize": 2, "x": 1}', rules) == 1.0
    assert structured.check_json_settings(b'{"editor.tabSize": 4}', rules) == 0.0
    assert structured.check_json_settings(b"{}", {"expected": {"x": None}}) == 0.0
    assert structured.check_json_settings(b"[", rules) == 0.0


def test_check_direct_json_object():
    assert structured.check_direct_json_object("{'a': '1', 'b': 2}\n", {"expected": {"a": "1"}}) == 1.0
    assert structured.check_direct_json_object({"a": "2"}, {"expected": {"a": "1"}}) == 0.0
    assert structured.check_direct_json_object("not json", {"expected": {"a": "1"}}) == 0.0
    part = {"expected": {"a": ["x", "y"], "b": "ell"}, "expect_in_result": True}
    assert structured.check_direct_json_object({"a": ["y"], "b": "hello"}, part) == 1.0
    assert structured.check_direct_json_object({"a": ["z"], "b": "hello"}, part) == 0.0
    assert structured.check_direct_json_object({"a": [1, 2]}, {"expected": {"a": [2, 1]}}) == 0.0


@pytest.mark.parametrize(
    ("actual", "expected", "score"),
    [
        (b'{\n    "a": "x",\n    "b": 1\n}', '{"a": "x"}\n', 1.0),
        (b'{"c": {"a": "x", "d": 2}}', '{"c": {"a": "x"}}', 1.0),
        (b'{"c": [1, 2]}', '{"c": [1]}', 0.0),
        (b'{"a": "y"}', '{"a": "x"}', 0.0),
        (b'["{\\"a\\": 1}", {"a": 1}]', '{"a": 1}', 0.0),
        (b'// settings\n{"a": 1}', '{"a": 1}\n', 1.0),  # no JSON: as text
        (b"folder: project\n", "project", 1.0),
        (b"folder: other\n", "project", 0.0),
        (b"x", "", 0.0),
        (None, "x", 0.0),
    ],
)
def test_compare_config_by_containment(actual, expected, score):
    """Of OSWorld's release after 1.0.2, so the cases are not compared with that."""
    assert text.compare_config(actual, {"expected": expected}, containment_ok=True) == score
    assert text.compare_config(actual, {"expected": expected}, containment_ok=False) == 0.0
