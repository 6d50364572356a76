"""Inputs of metrics and the score that each is worth: ours are held to them, and OSWorld's own where it has them.

A case is (metric, arguments, options, score). Bytes stand for a file; its suffix is what ``SUFFIX`` says of the metric.
"""

import io
import json
import tarfile
import zipfile

import numpy as np
from PIL import Image

SUFFIX = {"compare_docx_files": ".docx", "compare_init_lines": ".docx", "compare_docx_tables": ".docx"}
SUFFIX |= {"contains_page_break": ".docx", "compare_archive": ".zip", "compare_zip_files": ".zip"}
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org"


def as_paths(value, folder, name):
    """Writes bytes to files, because OSWorld's metrics take paths."""
    if isinstance(value, bytes):
        path = folder / f"{len(list(folder.iterdir()))}{SUFFIX.get(name, '.png' if value[1:4] == b'PNG' else '.txt')}"
        path.write_bytes(value)
        return str(path)
    if isinstance(value, list):
        return [as_paths(member, folder, name) for member in value]
    return value


def packed(files: dict[str, str | bytes], kind: str = "zip") -> bytes:
    """A zip or tar file."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tape.addfile(info, io.BytesIO(data.encode() if isinstance(data, str) else data))
    return buffer.getvalue()


def docx(*blocks: str) -> bytes:
    """A Word document of paragraphs and tables in XML."""
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    types = (
        f'<Types xmlns="{OFFICE}/package/2006/content-types"><Default Extension="xml" ContentType="application/xml"/>'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>'
    )
    relations = (
        f'<Relationships xmlns="{OFFICE}/package/2006/relationships"><Relationship Id="r1" Target="word/document.xml" '
        f'Type="{OFFICE}/officeDocument/2006/relationships/officeDocument"/></Relationships>'
    )
    document = f'<w:document xmlns:w="{WORD}"><w:body>{"".join(blocks)}</w:body></w:document>'
    return packed({"[Content_Types].xml": types, "_rels/.rels": relations, "word/document.xml": document})


def odt(*texts: str) -> bytes:
    """An OpenDocument text of paragraphs."""
    name = "urn:oasis:names:tc:opendocument:xmlns"
    return packed(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f'<office:document-content xmlns:office="{name}:office:1.0" xmlns:text="{name}:text:1.0">'
            f"<office:body><office:text>{''.join(f'<text:p>{text}</text:p>' for text in texts)}</office:text>"
            "</office:body></office:document-content>",
        }
    )


def p(*runs: str) -> str:
    """A paragraph: plain text becomes a run, XML stays."""
    inner = "".join(run if run.startswith("<") else f'<w:r><w:t xml:space="preserve">{run}</w:t></w:r>' for run in runs)
    return f"<w:p>{inner}</w:p>"


def table(*rows: tuple[str, ...]) -> str:
    cells = ["".join(f"<w:tc>{p(cell)}</w:tc>" for cell in row) for row in rows]
    columns = "<w:gridCol/>" * len(rows[0])
    return f"<w:tbl><w:tblPr/><w:tblGrid>{columns}</w:tblGrid>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


PAGE = '<w:r><w:br w:type="page"/></w:r>'
LINE = "<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t></w:r>"


def png(seed: int, size=(40, 30), *, mode="RGB", scale: float = 1.0, shift: int = 0, noise: int = 0) -> bytes:
    """A picture of smooth colours with some noise on it."""
    rng = np.random.default_rng(seed)
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    base = np.stack([120 + 60 * np.sin(6 * x + i) * np.cos(5 * y) for i in range(3)], axis=-1)
    pixels = base * scale + shift + rng.integers(-noise, noise + 1, base.shape)
    return png_of(np.clip(pixels, 0, 255).astype(np.uint8), mode)


def png_of(pixels, mode="RGB") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def framed() -> bytes:
    """A picture with a transparent frame of 5 pixels."""
    image = Image.new("RGBA", (50, 40), (0, 0, 0, 0))
    with Image.open(io.BytesIO(png(1))) as inner:
        image.paste(inner.convert("RGBA"), (5, 5))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def greyer(data: bytes, factor: float) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        hsv = np.array(image.convert("HSV"))
    hsv[..., 1] = (hsv[..., 1] * factor).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(hsv, "HSV").convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def j(value) -> bytes:
    return json.dumps(value).encode()


def registry(path: str, name: str, *values: str) -> bytes:
    """LibreOffice's registrymodifications.xcu with one setting, given once or several times."""
    entries = "".join(f'<prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop>' for value in values)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<oor:items xmlns:oor="http://openoffice.org/2001/registry">'
        f'<item oor:path="{path}">{entries}</item></oor:items>'
    ).encode()


def status(state: str, **info: str) -> bytes:
    """VLC's status."""
    facts = "".join(f'<info name="{name}">{value}</info>' for name, value in info.items())
    meta = f'<information><category name="meta">{facts}</category></information>'
    return f"<root><state>{state}</state>{meta}</root>".encode()


def rules(**values) -> dict:
    return values


E = "expected"
MAIL_FILTER = b"""version="9"
logging="no"
name="Discard"
enabled="yes"
type="17"
action="Move to folder"
actionValue="mailbox://nobody@Local%20Folders/Promotions"
condition="AND (subject,contains,discount) OR (from,isn't,\\"a b\\")"
name="Every"
enabled="no"
type="17"
action="Mark read"
condition="ALL"
"""
PREFS = b"""// a comment
user_pref("mail.server.name", "Anna \\"A\\"");
user_pref("mail.count", 12);
user_pref("mail.on", true);
"""
BAR = {
    "bookmark_bar": {
        "children": [
            {"type": "folder", "name": "Favorites", "children": []},
            {"type": "url", "name": "A", "url": "https://a.org/"},
            {
                "type": "folder",
                "name": "Liked Authors",
                "children": [{"type": "url", "name": "B", "url": "https://b.org/"}],
            },
        ]
    }
}
PICTURE, OTHER = png(1), png(2, shift=60, noise=90)
LETTER = docx(p("Dear Anna,"), p("it is ", "done."), p(""), p("Yours"))
TABLES = docx(p("x"), table(("a", "b"), ("c", "d ")))

TEXT_CASES = [
    ("check_include_exclude", ("abc", rules(include=["a"], exclude=["d"])), {}, 1),
    ("check_include_exclude", ("abc", rules(include=["a", "d"])), {}, 0),
    ("check_include_exclude", ("abc", rules(include=[], exclude=["c"])), {}, 0),
    ("check_include_exclude", (None, rules(include=[])), {}, 0),
    ("exact_match", ("a\n", rules(expected="a\n")), {}, 1),
    ("exact_match", ("a", rules(expected="a\n")), {}, 0),
    ("exact_match", ({"width": 1}, rules(expected={"width": 1})), {}, 1),
    ("match_in_list", ("Bing", rules(expected=["Microsoft Bing", "Bing"])), {}, 1),
    ("match_in_list", ("Google", rules(expected=["Bing"])), {}, 0),
    ("is_in_list", (["a", "b"], rules(expected="b")), {}, 1),
    ("is_in_list", ("abc", rules(expected="bc")), {}, 1),
    ("is_in_list", ([], rules(expected="b")), {}, 0),
    ("literal_match", (5, "5"), {}, 1),
    ("literal_match", ("A", "a"), {"ignore_case": True}, 1),
    ("literal_match", (["a", 1], ["a", "1"]), {"type": "list"}, 1),
    ("literal_match", (["a"], ["a", "1"]), {"type": "list"}, 0),
    ("literal_match", ("a", ["a"]), {"type": "list"}, 0),
    ("fuzzy_match", ("kitten", rules(expected="sitting")), {}, 2 * 4 / 13),  # i, t, t, n are common
    ("fuzzy_match", ("", rules(expected="")), {}, 1),
    ("fuzzy_match", ("same", rules(expected="same")), {}, 1),
    ("check_list", (b"one\ntwo\n", rules(expect=["^t.o$", "one"])), {}, 1),
    ("check_list", (b"one\r\ntwo", rules(expect=["^one$"])), {}, 1),
    ("check_list", (b"one\ntwo\n", rules(expect=["one"], unexpect=["^two$"])), {}, 0),
    ("check_list", (b"one\n", rules(expect=[r"one\s$"])), {}, 1),
    ("check_list", (b"one\n", rules(expect=["^$"])), {}, 0),
    ("check_list", (None, rules(expect=[])), {}, 0),
    ("compare_text_file", (b"a\r\nb\n", b"a\nb\n"), {}, 1),
    ("compare_text_file", (b"a b", b"a  b\n"), {}, 0),
    ("compare_text_file", (b"a\tb ", b" a\n\nb\n"), {"ignore_blanks": True}, 1),
    ("compare_text_file", (b"A", b"a"), {"ignore_case": True}, 1),
    ("compare_config", (b"x=1\n", rules(expected="x=1\n")), {"ignore_case": True}, 1),
    ("compare_config", (b"", rules(expected="")), {}, 1),
    ("compare_config", (b"x=1\ny", rules(expected="x=1\n")), {}, 0),
    ("compare_answer", ("42", rules(expected="42")), {}, 1),
    ("compare_answer", ("", rules(expected="")), {}, 0),
    ("compare_csv", (b"a,b\n1,2\n", b"a,b\n1,2"), {}, 1),
    ("compare_csv", (b'"a",b\n', b"a,b\n"), {}, 0),
    ("compare_csv", (b" A,b \n", b"a,b\n"), {"strict": False, "ignore_case": True}, 1),
    ("compare_csv", (b"a\n", [b"b\n", b"a\n"]), {}, 1),
    ("check_csv", (b"k,v\na,1\nb,2\n", rules(expect=[{"k": "a", "v": "1"}])), {}, 1),
    ("check_csv", (b"k,v\na,1\n", rules(expect=[{"k": "a"}], unexpect=[{"v": "1"}])), {}, 0),
    ("diff_text_file", (b"a\nb\n", b"a\nc\n"), {}, 0.5),
    ("diff_text_file", (b"a\nb\n", b"a\r\nb"), {}, 1),
    ("file_contains", (b"abc\ndef", rules(expected=["abc", "ef"])), {}, 1),
    ("file_contains", (b"abc", rules(expected=["abd"])), {}, 0),
    ("check_line_number", (b"at 12:30:59\nat 25:00:00\nnone\n23:59:60", rules(expected="2")), {}, 1),
    ("check_line_number", (b"x\n", rules(expected="1")), {}, 0),
    ("compare_terminal_and_txt", (b"$ ls\nx\n", "$ ls\nx\n"), {}, 1),
    ("compare_terminal_and_txt", (b"$ ls\n", "$ ls"), {}, 0),
    ("compare_python_pure_text", (b"#!/usr/bin/python\n\nx = 1  \n\ty\n", b"x = 1\n\n    y\n"), {}, 1),
    ("compare_python_pure_text", (b"x = 1\n", b"x = 2\n"), {}, 0),
    ("compare_python_pure_text", (b"", b"#!/usr/bin/python\n"), {}, 1),
    ("is_extension_installed", ("a.b\nc.d", rules(type="contain", expected="c.d")), {}, 1),
    ("is_extension_installed", ("a.b", rules(type="not_contain", expected="a.b")), {}, 0),
]


def rule(key, method, ref) -> dict:
    return {"key": key, "method": method, "ref": ref}


JSON_CASES = [
    ("check_json", (j({"a": {"b": 3}}), rules(expect=[rule(["a", "b"], "eq", 3)])), {}, 1),
    ("check_json", (j({"a": {"b": 3}}), rules(expect=[rule(["a", "b"], "range.te", [3, 4])])), {}, 0),
    (
        "check_json",
        (j({"a": 3.5}), rules(expect=[rule(["a"], "range.te", [3, 4]), rule(["a"], "approx:0.6", 4)])),
        {},
        1,
    ),
    ("check_json", (j({"a": "No"}), rules(expect=[rule(["a"], "re.IGNORECASE", "^no$")])), {}, 1),
    ("check_json", (j({"a": "x"}), rules(expect=[rule(["a"], "approx:1", 4)])), {}, 0),
    ("check_json", (j({"a": "'x,y'"}), rules(expect=[rule(["a"], "str_set_eq", ["y", "x"])])), {}, 1),
    ("check_json", (j({"a": "x,y"}), rules(expect=[rule(["a"], "str_list_eq", ["y", "x"])])), {}, 0),
    ("check_json", (j({"a": 1}), rules(expect=[rule(["b"], "eq", 1)])), {}, 0),
    ("check_json", (j({"a": "x"}), rules(expect=[rule(["a"], "lt", 1)])), {}, 0),
    ("check_json", (j({"a": 1}), rules(unexpect=[rule(["a"], "eq", 1)])), {}, 0),
    ("check_json", (j({"a": 1}), rules(unexpect=[rule(["b"], "eq", 1)])), {}, 1),
    ("check_json", (j({"a": 1}), rules(unexpect=[rule(["b"], "ne", 1)])), {}, 0),
    ("check_json", (j({"a": 1}), rules(unexpect=[rule(["b"], "lt", 1)])), {}, 0),
    ("check_json", (j({"a": [1]}), rules(expect=[rule(["a", 1], "ne", 1)])), {}, 0),
    ("check_json", (j({"a": [1]}), rules(unexpect=[rule(["a", 1], "eq", 1)])), {}, 0),
    ("check_json", (j({"a": [1]}), rules(unexpect=[rule(["a", "b"], "eq", 1)])), {}, 1),
    ("check_json", (b"{torn", rules(expect=[])), {}, 0),
    ("check_json_settings", (j({"a": 1, "b": [2]}), rules(expected={"b": [2]})), {}, 1),
    ("check_json_settings", (j({"a": 1}), rules(expected={"b": None})), {}, 0),
    ("check_json_settings", (b"", rules(expected={})), {}, 0),
    ("check_json_keybindings", (b"// Place your keys\n" + j([{"key": "x"}]), rules(expected={"key": "x"})), {}, 1),
    ("check_json_keybindings", (j([{"key": "x"}]), rules(expected={"key": "y"})), {}, 0),
    ("check_json_keybindings", (j({"key": "x"}), rules(expected={"key": "x"})), {}, 0),
    ("is_included_all_json_objects", (j({"a": 1}), j({"a": 1, "b": 2})), {}, 1),
    ("is_included_all_json_objects", (j({"a": 1}), j({"a": 2})), {}, 0),
    ("check_direct_json_object", ({"a": 1, "b": 2}, rules(expected={"a": 1})), {}, 1),
    ("check_direct_json_object", ("{'a': 'x'}\n", rules(expected={"a": "x"})), {}, 1),
    ("check_direct_json_object", (None, rules(expected={"a": 1})), {}, 0),
    (
        "check_direct_json_object",
        ({"a": "__EVALUATION_FAILED__"}, rules(expected={"a": "__EVALUATION_FAILED__"})),
        {},
        0,
    ),
    ("check_direct_json_object", ({"a": [1, 2]}, rules(expected={"a": [2, 1]}, ignore_list_order=True)), {}, 0),
    ("check_direct_json_object", ({"a": [1]}, rules(expected={"a": [1], "ignore_list_order": True})), {}, 0),
    ("check_direct_json_object", ({"a": 1}, rules(expected={"a": [1, 2]}, expect_in_result=True)), {}, 0),
    ("check_direct_json_object", ({"a": [1]}, rules(expected={"a": [1, 2]}, expect_in_result=True)), {}, 1),
    ("check_direct_json_object", ({"a": "xyz"}, rules(expected={"a": "y"}, expect_in_result=True)), {}, 1),
    ("check_direct_json_object", ({"a": "x"}, rules(expected={"a": ["x", "z"]}, expect_in_result=True)), {}, 1),
    ("check_direct_json_object", ({"a": ["q"]}, rules(expected={"a": ["x", "z"]}, expect_in_result=True)), {}, 0),
    ("check_direct_json_object", ({"a": ["q", "z"]}, rules(expected={"a": ["x", "z"]}, expect_in_result=True)), {}, 1),
]

BROWSER_CASES = [
    ("is_expected_active_tab", ({"url": "https://www.a.org/"}, rules(type="url", url="https://a.com")), {}, 1),
    ("is_expected_active_tab", ("https://a.org/x", rules(type="url", url="https://a.org/y")), {}, 0),
    ("is_expected_active_tab", ("https://a.org/x?q=1", rules(type="url", url="https://a.org/x?q=2")), {}, 0),
    ("is_expected_active_tab", ("https://shop.a.co.uk/x", rules(type="url", url="https://shop.a.com/x")), {}, 1),
    ("is_expected_active_tab", ("http://a.org", rules(type="url", url="https://a.org")), {}, 0),
    ("is_expected_active_tab", ("chrome://settings/", rules(type="url", url="chrome://settings")), {}, 1),
    ("is_expected_active_tab", ("http://127.0.0.1/a", rules(type="url", url="127.0.0.1/a")), {}, 1),
    ("is_expected_active_tab", ("http://127.0.0.1/a", rules(type="url", url="www.127.0.0.1/a")), {}, 0),
    ("is_expected_active_tab", ("https://www.shop.a.org/x", rules(type="url", url="https://shop.a.org/x")), {}, 0),
    ("is_expected_active_tab", ("https://www.a.invalid/x", rules(type="url", url="https://a.invalid/x")), {}, 0),
    ("is_expected_active_tab", ("https://a.org./x", rules(type="url", url="https://www.a.org/x")), {}, 1),
    ("is_expected_active_tab", (None, rules(type="url", url="x")), {}, 0),
    ("is_expected_active_tab_approximate", ("https://a.org/x?q=1", rules(type="url", url="https://a.org/x")), {}, 1),
    (
        "is_expected_active_tab_approximate",
        ({"url": "https://a.org/y"}, rules(type="url", url="https://a.org/x")),
        {},
        0,
    ),
    ("is_expected_url_pattern_match", ("https://a.org/x", rules(expected=["^https", "/x$"])), {}, 1),
    ("is_expected_url_pattern_match", ({"url": "https://a.org/x"}, rules(expected=["/y"])), {}, 0),
    (
        "is_expected_tabs",
        (
            [{"url": "https://a.org/"}, {"url": "https://b.org"}],
            rules(type="url", urls=["http://b.org", "https://a.org"]),
        ),
        {},
        0,
    ),
    (
        "is_expected_tabs",
        (
            [{"url": "https://a.org/"}, {"url": "https://b.org"}],
            rules(type="url", urls=["https://b.org", "https://a.org"]),
        ),
        {},
        1,
    ),
    (
        "is_expected_tabs",
        ([{"url": "https://a.org/"}], rules(type="url", urls=["https://b.org", "https://a.org"])),
        {},
        0,
    ),
    ("is_expected_search_query", ({"url": "https://x/?q=ab"}, rules(expect={"pattern": "q=a"})), {}, 1),
    ("is_expected_search_query", ({"url": "https://x/?q=b"}, rules(expect={"pattern": "q=a"})), {}, 0),
    (
        "is_expected_bookmarks",
        (BAR, rules(type="bookmark_bar_folders_names", names=["Favorites", "Liked Authors"])),
        {},
        1,
    ),
    ("is_expected_bookmarks", (BAR, rules(type="bookmark_bar_websites_urls", urls=["https://a.org/"])), {}, 1),
    ("is_expected_bookmarks", (BAR, rules(type="bookmark_bar_websites_urls", urls=["https://b.org/"])), {}, 0),
    (
        "is_expected_bookmarks",
        (BAR, rules(type="liked_authors_websites_urls", urls=[["https://c.org/", "https://b.org/"]])),
        {},
        1,
    ),
    ("is_expected_bookmarks", (BAR, rules(type="liked_authors_websites_urls", urls=["https://c.org/"])), {}, 0),
    ("is_expected_bookmarks", ([], rules(type="bookmark_bar_folders_names", names=[])), {}, 0),
    ("is_expected_installed_extensions", (["a", "b"], rules(expected=["b"])), {}, 1),
    ("is_expected_installed_extensions", (["a"], rules(expected=["b"])), {}, 0),
    ("is_cookie_deleted", ([[1, ".b.org"], [2, "c.org"]], rules(type="domains", domains=["amazon.com"])), {}, 1),
    ("is_cookie_deleted", ([[1, "www.amazon.com"]], rules(type="domains", domains=["amazon.com"])), {}, 0),
    ("is_cookie_deleted", ([[1, "www.amazon.com"]], rules(type="domains", domains=[".amazon.com"])), {}, 0),
    ("is_cookie_deleted", ([[1, "amazon.com"]], rules(type="domains", domains=[".amazon.com"])), {}, 0),
    ("is_cookie_deleted", ([[1, ".amazon.co.uk"]], rules(type="domains", domains=[".amazon.com"])), {}, 0),
    ("is_cookie_deleted", ([[1, ".www.amazon.com"]], rules(type="domains", domains=[".amazon.com"])), {}, 1),
    ("is_cookie_deleted", ([[1, ".pay.amazon.com"]], rules(type="domains", domains=[".amazon.com"])), {}, 1),
    (
        "check_history_deleted",
        ([["https://youtube.com/x", "", 1]], rules(type="keywords", keywords=["youtube"])),
        {},
        0,
    ),
    ("check_history_deleted", ([["https://a.org", "youtube", 1]], rules(type="keywords", keywords=["youtube"])), {}, 1),
    (
        "is_shortcut_on_desktop",
        ({"a.desktop": "[x]\nName=Play Puzzle\nExec=y\n"}, rules(type="name", name="Play Puzzle")),
        {},
        1,
    ),
    ("is_shortcut_on_desktop", ({"a.desktop": "Exec=yy\n"}, rules(type="exec", exec="y")), {}, 0),
    ("check_enabled_experiments", (["a@1", "b"], rules(type="names", names=["a", "b"])), {}, 1),
    ("check_enabled_experiments", (["b", "a@1"], rules(type="names", names=["a", "b"])), {}, 0),
    ("check_font_size", ({"default_font_size": 20}, rules(type="range", min=16, max=99)), {}, 1),
    ("check_font_size", ({"default_font_size": 16}, rules(type="range", min=16, max=99)), {}, 0),
    ("check_font_size", ({"default_font_size": 16}, rules(type="value", value=16)), {}, 1),
]

_ONE = "one_instance_when_started_from_file"
PLAYER_CASES = [
    ("check_qt_bgcone", (b"[qt]\n# cone (boolean)\n#qt-bgcone=1\nqt-bgcone=0\n", rules(expected_qt_bgcone=0)), {}, 1),
    ("check_qt_bgcone", (b"#qt-bgcone=1\n", rules(expected_qt_bgcone=0)), {}, 0),
    ("check_qt_bgcone", (b"", rules(expected_qt_bgcone="1")), {}, 1),
    ("check_qt_max_volume", (b"qt-max-volume=200", rules(expected_qt_max_volume=200)), {}, 1),
    ("check_qt_max_volume", (b"", rules(expected_qt_max_volume=125)), {}, 1),
    ("check_qt_max_volume", (b"#qt-max-volume=125", rules(expected_qt_max_volume=200)), {}, 0),
    ("check_qt_minimal_view", (b"", rules(expected_qt_minimal_view=1)), {}, 0),
    ("check_one_instance_when_started_from_file", (b"", {f"expected_{_ONE}": 0}), {}, 0),
    ("check_qt_minimal_view", (b"qt-minimal-view=1\n", rules(expected_qt_minimal_view=1)), {}, 1),
    (
        "check_one_instance_when_started_from_file",
        (b"one-instance-when-started-from-file=0", {f"expected_{_ONE}": 0}),
        {},
        1,
    ),
    ("check_global_key_play_pause", (b"#global-key-play-pause=\n", rules(expected_global_key_play_pause=1)), {}, 0),
    ("check_global_key_play_pause", (b"global-key-play-pause=\n", rules(expected_global_key_play_pause=0)), {}, 1),
    (
        "check_global_key_play_pause",
        (b"global-key-play-pause=Ctrl+P\n", rules(expected_global_key_play_pause=1)),
        {},
        1,
    ),
    ("check_qt_slider_colours", (b"qt-slider-colours=1;2;3;99;0;0", rules(type="blackish")), {}, 1),
    ("check_qt_slider_colours", (b"#none", rules(type="blackish")), {}, 0),
    (
        "check_qt_slider_colours",
        (b"qt-slider-colours=1;2", rules(type="match", expected_qt_slider_colours="1;2")),
        {},
        1,
    ),
    (
        "is_vlc_recordings_folder",
        (b"#input-record-path=/b\ninput-record-path=/a\n", rules(recording_file_path="/a")),
        {},
        1,
    ),
    ("is_vlc_recordings_folder", (b"#input-record-path=/a\n", rules(recording_file_path="/a")), {}, 0),
    ("is_vlc_fullscreen", ({"width": 2, "height": 1}, {"width": 2, "height": 1}), {}, 1),
    ("is_vlc_fullscreen", ({"width": 2, "height": 1}, {"width": 2, "height": 2}), {}, 0),
    ("is_vlc_fullscreen", (None, {"width": 2, "height": 2}), {}, 0),
    ("is_vlc_playing", (status("playing", filename="a.mp4"), rules(type="file_name", file_name="a.mp4")), {}, 1),
    ("is_vlc_playing", (status("paused", filename="a.mp4"), rules(type="file_name", file_name="a.mp4")), {}, 0),
    ("is_vlc_playing", (status("playing"), rules(type="file_name", file_name="a.mp4")), {}, 0),
    ("is_vlc_playing", (status("playing", filename="m.m3u8"), rules(type="url", url="https://x.org/v/m.m3u8")), {}, 1),
    (
        "is_vlc_playing",
        (status("playing", url="https://x.org/v/m.m3u8?t"), rules(type="url", url="https://x.org/v/m.m3u8")),
        {},
        1,
    ),
    (
        "is_vlc_playing",
        (status("playing", url="https://y.org/v/m.m3u8"), rules(type="url", url="https://x.org/v/m.m3u8")),
        {},
        0,
    ),
]

PICTURE_CASES = [
    ("compare_images", (PICTURE, PICTURE), {}, 1),
    ("compare_images", (PICTURE, PICTURE), {"reference_base_result": 0.5}, 1),
    ("compare_images", (PICTURE, OTHER), {}, None),
    ("compare_images", (png(1, noise=8), PICTURE), {}, None),
    ("compare_images", (png(1, noise=8), PICTURE), {"reference_base_result": 0.2}, None),
    ("compare_images", (png(1, size=(80, 60)), PICTURE), {}, None),
    ("compare_images", (PICTURE, OTHER), {"reference_base_result": 0.99}, 0),
    ("compare_images", (None, PICTURE), {}, 0),
    ("compare_image_list", (PICTURE, PICTURE), {}, 1),
    ("compare_image_list", ([PICTURE, OTHER], [PICTURE, OTHER]), {}, 1),
    ("compare_image_list", ([PICTURE, PICTURE], [PICTURE, OTHER]), {}, 0),
    ("check_structure_sim", (PICTURE, PICTURE), {}, 1),
    ("check_structure_sim", (PICTURE, OTHER), {}, 0),
    ("check_structure_sim", (PICTURE, png(1, size=(41, 30))), {}, 0),
    ("check_structure_sim", (png(1, noise=2), PICTURE), {}, None),
    ("check_structure_sim_resized", (framed(), PICTURE), {}, 1),
    ("check_structure_sim_resized", (OTHER, PICTURE), {}, 0),
    ("check_brightness_decrease_and_structure_sim", (png(1, scale=0.7), PICTURE), {}, 1),
    ("check_brightness_decrease_and_structure_sim", (png(1, scale=1.2), PICTURE), {}, 0),
    ("check_brightness_decrease_and_structure_sim", (png(3, scale=0.5, noise=120), PICTURE), {}, None),
    ("check_saturation_increase_and_structure_sim", (PICTURE, greyer(PICTURE, 0.6)), {}, None),
    ("check_saturation_increase_and_structure_sim", (greyer(PICTURE, 0.6), PICTURE), {}, 0),
    ("check_contrast_increase_and_structure_sim", (png(1, scale=1.3, shift=-30), PICTURE), {}, None),
    ("check_contrast_increase_and_structure_sim", (PICTURE, png(1, scale=1.3, shift=-30)), {}, 0),
    ("check_image_size", (PICTURE, rules(width=40, height=30)), {}, 1),
    ("check_image_size", (PICTURE, rules(height=31)), {}, 0),
    ("check_image_size", (framed(), rules(width=40, height=30, ignore_transparent=True)), {}, 1),
    ("check_image_size", (framed(), rules(width=40)), {}, 0),
    ("check_image_file_size", (b"12345", rules(max_size=6)), {}, 1),
    ("check_image_file_size", (b"12345", rules(max_size=5)), {}, 0),
]

DOCUMENT_CASES = [
    ("compare_docx_files", (LETTER, LETTER), {}, 1),
    ("compare_docx_files", (LETTER, docx(p("Dear Anna, it is done. Yours"))), {}, 1),
    ("compare_docx_files", (LETTER, docx(p("Dear Anna, it is done. Yours"))), {"ignore_blanks": False}, 0),
    ("compare_docx_files", (docx(p("A")), docx(p("a"))), {"ignore_case": True}, 1),
    (
        "compare_docx_files",
        (docx(p("a"), p("b")), docx(p("b"), p("a"))),
        {"ignore_order": True, "ignore_blanks": False},
        1,
    ),
    (
        "compare_docx_files",
        (docx(p("a"), p(" "), p("b")), docx(p("a"), p("b"))),
        {"delete_empty_lines": True, "ignore_blanks": False},
        1,
    ),
    ("compare_docx_files", (docx(p("kitten")), docx(p("sitting"))), {"fuzzy_match": True}, 8 / 13),
    (
        "compare_docx_files",
        (docx(p("kitten"), p("x")), docx(p("sitting"), p("x"))),
        {"fuzzy_match": True, "ignore_blanks": False},
        (8 / 13 + 1) / 2,
    ),
    (
        "compare_docx_files",
        (docx(p("KITTEN")), docx(p("sitting"))),
        {"content_only": True, "ignore_case": True},
        8 / 13,
    ),
    ("compare_docx_files", (docx(p(LINE)), docx(p("a\tb\nc"))), {"ignore_blanks": True}, 1),
    ("compare_docx_files", (b"no zip", LETTER), {}, 0),
    ("compare_docx_files", (None, LETTER), {}, 0),
    ("compare_init_lines", (docx(p("a"), p("b")), docx(p("a"))), {}, 1),
    ("compare_init_lines", (docx(p("a"), p("b")), docx(p("b"))), {}, 0),
    ("compare_init_lines", (odt("a"), docx(p("a"))), {}, 0),
    ("compare_init_lines", (odt("a"), odt("a")), {}, 0),
    ("compare_docx_tables", (TABLES, docx(table(("a", "b"), ("c", "d")))), {}, 1),
    ("compare_docx_tables", (TABLES, docx(table(("a", "b"), ("c", "e")))), {}, 0),
    ("compare_docx_tables", (TABLES, docx(table(("a", "b", "c", "d")))), {}, 0),
    ("compare_docx_tables", (TABLES, LETTER), {}, 0),
    ("contains_page_break", (docx(p("a", PAGE), p("b")), {}), {}, 1),
    ("contains_page_break", (docx(p("a", PAGE), p("b")), rules(page_break_count=2)), {}, 0),
    ("contains_page_break", (LETTER, {}), {}, 0),
]

SAVE = "/org.openoffice.Office.Common/Save/Document"
_FONT = "/org.openoffice.Office.Writer/DefaultFont"
START = "/org.openoffice.Office.Impress/Misc/Start"
SETTINGS_CASES = [
    ("check_config_status", (b'# x\n\n(theme "Dark")\n(theme "Light")\n', rules(key="theme", value='"Light"')), {}, 1),
    ("check_config_status", (b'(theme "Dark")\n', rules(key="theme", value='"Light"')), {}, 0),
    ("check_config_status", (b"(undo-levels size 100)\n", rules(key=["undo-levels", "size"], value="100")), {}, 1),
    ("check_config_status", (None, rules(key="x", value="y")), {}, 0),
    ("find_default_font", (registry(_FONT, "Standard", "Times New Roman"), rules(font_name="Times New Roman")), {}, 1),
    ("find_default_font", (registry(_FONT, "Heading", "Times New Roman"), rules(font_name="Times New Roman")), {}, 0),
    ("check_presenter_console_disable", (registry(START, "EnablePresenterScreen", "false"),), {}, 1),
    ("check_presenter_console_disable", (registry(START, "EnablePresenterScreen", "true"),), {}, 0),
    ("check_presenter_console_disable", (registry(START, "Other", "false"),), {}, 0),
    ("check_auto_saving_time", (registry(SAVE, "AutoSaveTimeIntervall", "3"), rules(minutes=3)), {}, 1),
    ("check_auto_saving_time", (registry(SAVE, "AutoSaveTimeIntervall", "10"), rules(minutes=3)), {}, 0),
    ("check_auto_saving_time", (registry(SAVE, "AutoSaveTimeIntervall", "10", "3"), rules(minutes=3)), {}, 0),
    ("check_auto_saving_time", (registry(SAVE, "Other", "3"), rules(minutes=3)), {}, 0),
    (
        "check_libre_locale",
        (registry("/org.openoffice.Setup/L10N", "ooSetupSystemLocale", "es-ES"), rules(locale_set=["es-*"])),
        {},
        1,
    ),
    (
        "check_libre_locale",
        (registry("/org.openoffice.Setup/L10N", "ooLocale", "en-US"), rules(locale_set=["es-*"])),
        {},
        0,
    ),
    ("check_left_panel", ('<a><frame><document-frame name="Slides View"/></frame></a>',), {}, 1),
    ("check_left_panel", ('<a><frame name="Slides View"/></a>',), {}, 0),
    (
        "check_thunderbird_prefs",
        (
            PREFS,
            {
                "expect": {
                    "mail.server.name": {"method": "re", "ref": '^Anna "A"$'},
                    "mail.on": {"method": "eq", "ref": True},
                }
            },
        ),
        {},
        1,
    ),
    ("check_thunderbird_prefs", (PREFS, {"expect": {"mail.count": {"method": "lt", "ref": 12}}}), {}, 0),
    ("check_thunderbird_prefs", (PREFS, {"expect": {"mail.none": {"method": "eq", "ref": 1}}}), {}, 0),
    ("check_thunderbird_prefs", (PREFS, {"unexpect": {"mail.count": {"method": "eq", "ref": 12}}}), {}, 0),
    ("check_thunderbird_prefs", (PREFS, {"unexpect": {"mail.count": {"method": "eq", "ref": 13}}}), {}, 1),
    (
        "check_thunderbird_filter",
        (
            MAIL_FILTER,
            {
                "expect": [
                    {
                        "enabled": "yes",
                        "action": "Move to folder",
                        "actionValue": "mailbox://nobody@Local%20Folders/Promotions",
                        "condition": ["AND (subject,contains,discount)", 'OR (from,isn\'t,"a b")'],
                    }
                ]
            },
        ),
        {},
        1,
    ),
    ("check_thunderbird_filter", (MAIL_FILTER, {"expect": [{"condition": ["ALL"], "enabled": "no"}]}), {}, 1),
    ("check_thunderbird_filter", (MAIL_FILTER, {"expect": [{"name": "Discard", "enabled": "no"}]}), {}, 0),
    ("check_thunderbird_filter", (MAIL_FILTER, {"unexpect": [{"action": "Mark read"}]}), {}, 0),
]

SYSTEM_CASES = [
    ("check_gnome_favorite_apps", ("['a.desktop', 'b.desktop']\n", rules(expected=["b.desktop", "a.desktop"])), {}, 1),
    ("check_gnome_favorite_apps", ("['a.desktop']", rules(expected=["b.desktop", "a.desktop"])), {}, 0),
    ("is_utc_0", ("a\nb\nc\n  Time zone: Etc/UTC (UTC, +0000)\n",), {}, 1),
    ("is_utc_0", ("a\nb\nc\n  Time zone: CET (CET, +0100)\n",), {}, 0),
    ("check_text_enlarged", ("1.25\n",), {}, 1),
    ("check_text_enlarged", ("1.0\n",), {}, 0),
    (
        "check_moved_jpgs",
        ({"children": [{"name": "a.jpg"}, {"name": "b.jpg"}]}, rules(expected=["b.jpg", "a.jpg"])),
        {},
        1,
    ),
    ("check_moved_jpgs", ({"children": [{"name": "a.jpg"}]}, rules(expected=["b.jpg", "a.jpg"])), {}, 0),
    ("is_in_vm_clickboard", (rules(expected=["a", "b"]), "b a"), {}, 1),
    ("is_in_vm_clickboard", (rules(expected="ab"), "b a"), {}, 0),
    (
        "compare_archive",
        (packed({"x/a.txt": "1", "x/b.txt": "2"}), packed({"x/a.txt": "1", "x/b.txt": "3"})),
        {"file_path": "x"},
        0.5,
    ),
    ("compare_archive", (packed({"a.txt": "1"}), packed({"a.txt": "1", "b.txt": "2"})), {}, 0),
    ("compare_archive", (packed({"a.png": PICTURE}), packed({"a.png": PICTURE})), {"file_type": "image"}, 1),
    ("compare_archive", (packed({"a.docx": LETTER}), packed({"a.docx": TABLES})), {"file_type": "docx"}, 0),
    ("compare_zip_files", (packed({"a": "1", "b": "2"}), packed({"b": "2", "a": "1"})), {}, 1),
    ("compare_zip_files", (packed({"a": "1"}), packed({"a": "2"})), {}, 0),
]

CASES = [
    *TEXT_CASES,
    *JSON_CASES,
    *BROWSER_CASES,
    *PLAYER_CASES,
    *PICTURE_CASES,
    *DOCUMENT_CASES,
    *SETTINGS_CASES,
    *SYSTEM_CASES,
]
IDS = [f"{name}-{i}" for i, (name, *_) in enumerate(CASES)]
