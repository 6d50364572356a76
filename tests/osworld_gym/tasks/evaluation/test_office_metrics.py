"""Metrics on office files, images and PDFs: files made by the suite's builders, and wrong ones."""

import io
import zipfile
import zlib

import pytest
from PIL import Image

from osworld_gym.tasks.evaluation.metrics.office import (
    check_document,
    check_image,
    check_pdf,
    check_sheet,
    check_slides,
)
from osworld_gym.tasks.evaluation.metrics.office.sheets import letters, read_sheets
from osworld_gym.tasks.evaluation.metrics.office.texts import read_document, read_notes
from osworld_gym.tasks.suites.desktop.content.decks import make_pptx
from osworld_gym.tasks.suites.desktop.content.media import (
    GRASS,
    WALL,
    make_avi,
    make_mail,
    make_mbox,
    make_png,
    make_wav,
)
from osworld_gym.tasks.suites.desktop.content.packed import pack
from osworld_gym.tasks.suites.desktop.content.sheets import column, make_xlsx
from osworld_gym.tasks.suites.desktop.content.texts import make_docx, make_odt

BOOK = make_xlsx({"Sales": [["Item", "N"], ["pens", 3], ["ink", "=B2*2"], [None, 0.25]], "Q & A": [["x"]]})
TEXT = make_docx([("My report", "Title"), ("Part one", "Heading1"), "Hello & welcome.", "\f", "The end."])
DECK = make_pptx([("One", ["a", "b"]), ("Two", [])])


def rezip(data: bytes, **changes: tuple[str, str]) -> bytes:
    """The package with texts replaced in parts: ``{part with _ for / and .: (old, new)}``."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    for key, (old, new) in changes.items():
        name = next(name for name in parts if name.replace("/", "_").replace(".", "_") == key)
        assert old in parts[name]
        parts[name] = parts[name].replace(old, new)
    return pack(parts)


def test_builders_return_the_same_bytes_every_time():
    makers = (
        lambda: make_xlsx({"A": [["x", 1]]}),
        lambda: make_docx(["x"]),
        lambda: make_odt(["x"]),
        lambda: make_pptx([("x", ["y"])]),
        lambda: make_png(32, 20),
        lambda: make_wav(0.1, 440.0),
        lambda: make_avi(1),
        lambda: make_mbox([make_mail(1, "a@example.com", "s", "t", {"f.txt": b"x"})]),
    )
    for make in makers:
        assert make() == make()
    assert [column(i) for i in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]
    assert [letters(i) for i in (0, 25, 26)] == ["A", "Z", "AA"]


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ({"cells": {"A1": "Item", "B2": 3, "B4": 0.25, "C9": None}}, 1),
        ({"cells": {"B2": 4}}, 0),
        ({"cells": {"B2": "3"}}, 0),
        ({"cells": {"A1": None}}, 0),
        ({"formulas": {"B3": r"B2\*2"}}, 1),
        ({"formulas": {"B2": "."}}, 0),
        ({"sheet": "Q & A", "cells": {"A1": "x"}}, 1),
        ({"sheet": "Other", "cells": {"A1": "x"}}, 0),
        ({"sheets": ["Sales", "Q & A"]}, 1),
        ({"sheets": ["Q & A", "Sales"]}, 0),
        ({"formats": {"A1": {"bold": False, "number_format": {"matches": "^General$"}}}}, 1),
        ({"formats": {"A1": {"bold": True}}}, 0),
        ({"merged": ["A1:B1"]}, 0),
        ({"frozen_rows": 0, "charts": 0}, 1),
        ({"frozen_rows": 1}, 0),
    ],
)
def test_sheets(rules, score):
    assert check_sheet(BOOK, rules) == score


def test_formats_of_a_sheet():
    styled = rezip(
        make_xlsx({"A": [[0.5]]}),
        xl_styles_xml=("<font><sz", "<font><b/><i val='0'/><sz"),
        xl_worksheets_sheet1_xml=("</sheetData>", "</sheetData><mergeCells><mergeCell ref='A1:C1'/></mergeCells>"),
    )
    assert check_sheet(styled, {"formats": {"A1": {"bold": True, "italic": False}}, "merged": ["A1:C1"]}) == 1
    percent = rezip(make_xlsx({"A": [[0.5]]}), xl_styles_xml=('numFmtId="0"', 'numFmtId="10"'))
    assert check_sheet(percent, {"formats": {"A1": {"number_format": "0.00%"}}}) == 1


def test_an_opendocument_sheet():
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text", "style")
    )
    fo = 'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"'
    content = (
        f'<office:document-content {spaces} {fo}><office:automatic-styles><style:style style:name="b">'
        '<style:text-properties fo:font-weight="bold"/></style:style></office:automatic-styles><office:body>'
        '<office:spreadsheet><table:table table:name="T"><table:table-row table:number-rows-repeated="2">'
        '<table:table-cell office:value-type="string" table:style-name="b"><text:p>x</text:p></table:table-cell>'
        '<table:table-cell table:number-columns-repeated="2"/>'
        '<table:table-cell office:value-type="float" office:value="4.5" table:formula="of:=1+3.5"/></table:table-row>'
        '<table:table-row table:number-rows-repeated="1048574"><table:table-cell/></table:table-row>'
        "</table:table></office:spreadsheet></office:body></office:document-content>"
    )
    data = pack({"mimetype": "x", "content.xml": content})
    rules = {"cells": {"A1": "x", "A2": "x", "D2": 4.5, "B1": None}, "formulas": {"D1": "3.5"}, "sheets": ["T"]}
    assert check_sheet(data, rules | {"formats": {"A2": {"bold": True}, "D1": {"bold": False}}}) == 1
    assert len(read_sheets(data)[0].cells) == 4


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ({"texts": ["My report", "Part one", "Hello & welcome.", "The end."]}, 1),
        ({"texts": ["My report"]}, 0),
        ({"pages": [["My report", "Part one", "Hello & welcome."], ["The end."]], "tables": [], "pictures": 0}, 1),
        ({"pages": [["My report", "Part one"], ["Hello & welcome.", "The end."]]}, 0),
        ({"paragraphs": {"^Part": {"style": "heading 1", "bold": False, "align": "left"}}}, 1),
        ({"paragraphs": {"^Part": {"style": {"matches": "(?i)^HEADING"}}}}, 1),
        ({"paragraphs": {"^Part": {"bold": True}}}, 0),
        ({"paragraphs": {"^No such": {"bold": False}}}, 0),
        ({"paragraphs": {"e": {"bold": False}}}, 0),  # matches several paragraphs: ambiguous
    ],
)
def test_documents(rules, score):
    assert check_document(TEXT, rules) == score


def test_formats_of_a_paragraph():
    runs = "<w:r><w:rPr><w:b/><w:i w:val='false'/><w:u w:val='single'/></w:rPr><w:t>The end.</w:t></w:r>"
    styled = rezip(
        TEXT,
        word_document_xml=(
            '<w:p><w:r><w:t xml:space="preserve">The end.</w:t></w:r></w:p>',
            "<w:p><w:pPr><w:spacing w:lineRule='auto' w:line='360'/><w:jc w:val='both'/></w:pPr>" + runs + "</w:p>"
            "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>c</w:t></w:r></w:p></w:tc></w:tr></w:tbl>",
        ),
    )
    wanted = {"bold": True, "italic": False, "underline": True, "align": "justify", "line_spacing": 1.5}
    assert check_document(styled, {"paragraphs": {"^The end": wanted}, "tables": [[["c"]]]}) == 1
    half = rezip(
        styled, word_document_xml=("<w:t>The end.</w:t></w:r>", "<w:t>The</w:t></w:r><w:r><w:t> end.</w:t></w:r>")
    )
    assert check_document(half, {"paragraphs": {"^The end": {"bold": True}}}) == 0


BREAK = "<w:r><w:br w:type='page'/></w:r>"


@pytest.mark.parametrize(
    ("body", "pages"),
    [
        ("<w:p>{a}</w:p><w:p>{b}</w:p>", [["a", "b"]]),
        ("<w:p>{a}</w:p><w:p>{BREAK}{b}</w:p>", [["a"], ["b"]]),
        ("<w:p>{a}{BREAK}</w:p><w:p>{b}</w:p>", [["a"], ["b"]]),
        ("<w:p>{a}</w:p><w:p>{BREAK}</w:p><w:p>{b}</w:p>", [["a"], ["b"]]),
        ("<w:p>{a}</w:p><w:p><w:pPr><w:pageBreakBefore/></w:pPr>{b}</w:p>", [["a"], ["b"]]),
        ("<w:p>{a}</w:p><w:p><w:pPr><w:pageBreakBefore w:val='0'/></w:pPr>{b}</w:p>", [["a", "b"]]),
        ("<w:p>{BREAK}{a}</w:p><w:p>{b}</w:p>", [[], ["a", "b"]]),  # an empty first page
        ("<w:p>{a}</w:p><w:p>{b}{BREAK}</w:p>", [["a", "b"], []]),
        ("<w:p>{a}{BREAK}{b}</w:p>", [["a"], ["b"]]),  # in the middle of a paragraph
        ("<w:p>{a}</w:p><w:p>{BREAK}{BREAK}{b}</w:p>", [["a"], [], ["b"]]),
        ("<w:p>{a}<w:r><w:br/></w:r></w:p><w:p>{b}</w:p>", [["a", "b"]]),  # a line break
    ],
)
def test_pages_are_what_page_breaks_divide(body: str, pages: list[list[str]]) -> None:
    run = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'
    text = body.format(a=run.format("a"), b=run.format("b"), BREAK=BREAK)
    whole = "".join(f"<w:p>{run.format(word)}</w:p>" for word in "ab")
    document = rezip(make_docx(["a", "b"]), word_document_xml=(whole, text))
    assert read_document(document).pages == pages
    assert check_document(document, {"pages": pages}) == 1
    assert check_document(document, {"pages": [*pages, ["c"]]}) == 0


def test_an_opendocument_text():
    plain = make_odt(["one & two", "three"])
    assert check_document(plain, {"texts": ["one & two", "three"], "paragraphs": {"one": {"bold": False}}}) == 1
    styles = (
        "<office:automatic-styles xmlns:style='urn:oasis:names:tc:opendocument:xmlns:style:1.0' "
        "xmlns:fo='urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0'><style:style style:name='P1' "
        "style:parent-style-name='Heading_20_1'><style:paragraph-properties fo:text-align='center' "
        "fo:break-before='page' fo:line-height='150%'/></style:style><style:style style:name='T1'>"
        "<style:text-properties fo:font-weight='bold'/></style:style></office:automatic-styles><office:body>"
    )
    styled = rezip(plain, content_xml=("<office:body>", styles))
    marked = "<text:p text:style-name='P1'><text:span text:style-name='T1'>three</text:span></text:p>"
    styled = rezip(styled, content_xml=("<text:p>three</text:p>", marked))
    wanted = {"style": "Heading 1", "align": "center", "page_break": True, "line_spacing": 1.5, "bold": True}
    after = rezip(styled, content_xml=("fo:break-before='page'", "fo:break-after='page'"))
    assert read_document(after).pages == [["one & two", "three"], []]
    assert check_document(styled, {"paragraphs": {"three": wanted}, "pages": [["one & two"], ["three"]]}) == 1
    assert read_document(styled).paragraphs[0].bold is False


def test_slides():
    assert check_slides(DECK, {"slides": [["One", "a\nb"], ["Two"]]}) == 1
    assert check_slides(DECK, {"slides": [["Two"], ["One", "a\nb"]]}) == 0
    assert check_slides(DECK, {"notes": ["x"]}) == 0
    assert read_notes(DECK) == []


def test_pictures():
    png = make_png(320, 200)
    sound = {"size": [320, 200], "format": "PNG", "grey": False, "pixels": [[0.75, 0.5, WALL], [0.3, 0.9, GRASS]]}
    assert check_image(png, sound) == 1
    for wrong in ({"size": [200, 320]}, {"format": "JPEG"}, {"grey": True}, {"pixels": [[0.1, 0.9, WALL]]}):
        assert check_image(png, sound | wrong) == 0
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("L").save(buffer, "JPEG")
    assert check_image(buffer.getvalue(), {"grey": True, "format": "JPEG"}) == 1


def test_pdfs():
    page = b"1 0 obj<</Type /Page>>endobj 2 0 obj<</Type/Page/X 1>>endobj 3 0 obj<</Type/Pages>>endobj"
    assert check_pdf(b"%PDF-1.6\n" + page + b"\n%%EOF\n", {"pages": 2}) == 1
    assert check_pdf(b"%PDF-1.6\n" + page + b"\n%%EOF\n", {"pages": 3}) == 0
    assert check_pdf(b"%PDF-1.6\n" + page, {"pages": 2}) == 0  # truncated


@pytest.mark.parametrize(("letters", "score"), [("Ab", 1), ("a bA", 1), ("ü", 1), ("xyz", 1), ("Abc", 0), ("w", 0)])
def test_the_letters_of_a_pdf_are_those_of_its_fonts(letters, score):
    """A font has a table of the characters that the text needs: pairs, ranges, and lists; one is not compressed."""
    pairs = zlib.compress(b"2 beginbfchar <01> <0041> <02><0062> endbfchar")
    ranges = b"2 beginbfrange <0003> <0005> <0078> <06> <07> [<0061> <00FC>] endbfrange"
    streams = b"".join(b"<<>>\nstream\n" + data + b"\nendstream\n" for data in (pairs, ranges, b"JPEG"))
    data = b"%PDF-1.6\n/Type/Page\n" + streams + b"%%EOF\n"
    assert check_pdf(data, {"pages": 1, "letters": letters}) == score
    assert check_pdf(b"%PDF-1.6\n/Type/Page\n%%EOF\n", {"pages": 1, "letters": letters}) == 0  # a blank page


@pytest.mark.parametrize("data", [None, b"", b"hello", pack({"a.txt": "x"}), BOOK[: len(BOOK) // 2]])
def test_a_file_of_another_kind_scores_zero(data):
    assert check_sheet(data, {"cells": {"C9": None}}) == 0
    assert check_document(data, {"tables": []}) == 0
    assert check_slides(data, {"slides": []}) == 0
    assert check_image(data, {"grey": False}) == 0
    assert check_pdf(data, {"pages": 0}) == 0


@pytest.mark.parametrize("check", [check_sheet, check_document, check_slides, check_image, check_pdf])
def test_a_wrong_rule_is_an_error(check):
    with pytest.raises(ValueError, match=r"expected rules among .*, got celsl"):
        check(BOOK, {"celsl": {}})
    with pytest.raises(ValueError, match="got none"):
        check(BOOK, {})
