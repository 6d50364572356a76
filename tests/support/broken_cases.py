"""Results that OSWorld's metrics give nothing for, and ours once did: name → (metric, arguments, options).

Most make OSWorld's function raise. Ours raise too, or give 0.
"""

import io
import zipfile

from metric_cases import LETTER, MAIL_FILTER, PICTURE, PREFS, START, packed, png, registry

ONE = packed({"x/a.txt": "1"})
PARTS = {"x/a.txt": "1"}


def without(part: str) -> bytes:
    """``LETTER`` without a part."""
    with zipfile.ZipFile(io.BytesIO(LETTER)) as archive:
        return packed({name: archive.read(name) for name in archive.namelist() if name != part})


def contents(**values) -> dict:
    return values


NOT_UTF8 = b"\xff"
CONSOLE = registry(START, "EnablePresenterScreen", "true", "false").replace(b"<value>true</value>", b"")
INSIDE = {"file_path": "x"}
BROKEN = {
    "archive with a folder more": ("compare_archive", (packed({**PARTS, "x/b/": ""}), ONE), INSIDE),
    "archive with a file in a folder more": ("compare_archive", (packed({**PARTS, "x/b/c": "1"}), ONE), INSIDE),
    "archive with a folder in the place of a file": ("compare_archive", (packed({"x/a.txt/": ""}), ONE), INSIDE),
    "archive without the folder": ("compare_archive", (packed({"a.txt": "1"}), ONE), INSIDE),
    "archive of another kind": ("compare_archive", (packed(PARTS, "tar"), ONE), INSIDE),
    "zip file with a folder more": ("compare_zip_files", (packed({**PARTS, "b/": ""}), ONE), {}),
    "zip file of another kind": ("compare_zip_files", (packed(PARTS, "tar"), ONE), {}),
    "document without content types": ("compare_docx_files", (without("[Content_Types].xml"), LETTER), {}),
    "document without relations": ("compare_docx_files", (without("_rels/.rels"), LETTER), {}),
    "first lines of no document": ("compare_init_lines", (without("_rels/.rels"), LETTER), {}),
    "registry whose first entry has no value": ("check_presenter_console_disable", (CONSOLE,), {}),
    "list that is no UTF-8": ("check_list", (b"one\n" + NOT_UTF8, contents(expect=["one"])), {}),
    "table that is no UTF-8": ("check_csv", (b"k\na\n" + NOT_UTF8, contents(expect=[{"k": "a"}])), {}),
    "text that is no UTF-8": ("diff_text_file", (b"a\n" + NOT_UTF8, b"a\n"), {}),
    "words that are no UTF-8": ("file_contains", (b"a\n" + NOT_UTF8, contents(expected=["a"])), {}),
    "times that are no UTF-8": ("check_line_number", (b"12:30:59\n" + NOT_UTF8, contents(expected="1")), {}),
    "program that is no UTF-8": ("compare_python_pure_text", (NOT_UTF8, "\ufffd".encode()), {}),
    "settings that are no UTF-8": (
        "check_config_status",
        (b"(key value)\n" + NOT_UTF8, contents(key="key", value="value")),
        {},
    ),
    "settings with a blank line": (
        "check_config_status",
        (b" \n(key value)\n", contents(key="key", value="value")),
        {},
    ),
    "preferences that are no UTF-8": (
        "check_thunderbird_prefs",
        (PREFS + NOT_UTF8, contents(expect={"mail.count": {"method": "eq", "ref": 12}})),
        {},
    ),
    "filters that are no UTF-8": (
        "check_thunderbird_filter",
        (MAIL_FILTER + NOT_UTF8, contents(expect=[{"name": "Every"}])),
        {},
    ),
    "filter that begins without a name": (
        "check_thunderbird_filter",
        (b'enabled="yes"\n' + MAIL_FILTER, contents(expect=[{"name": "Every"}])),
        {},
    ),
    "number for a text": ("fuzzy_match", (0, contents(expected="")), {}),
    "address with another suffix": (
        "is_expected_active_tab",
        ("https://a.orgx/", contents(type="url", url="https://a.org/")),
        {},
    ),
    "cookie with a blank": (
        "is_cookie_deleted",
        ([[1, " www.a.org"]], contents(type="domains", domains=["a.org"])),
        {},
    ),
    "tiny picture": ("compare_images", (png(1, size=(6, 6)), PICTURE), {}),
}
