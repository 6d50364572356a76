"""Metrics on text documents (docx, odt), read as XML from their zip files, without a document library."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from osworld_gym.tasks.evaluation.osworld.metrics.rules import likeness
from osworld_gym.tasks.evaluation.parsing import parse_xml

Element = ElementTree.Element
#: what a package that is not complete raises; with ElementTree.ParseError
BROKEN_PACKAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, NotImplementedError, RuntimeError)
_TYPES = "{http://schemas.openxmlformats.org/package/2006/content-types}"
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_OFFICE_DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


def read_document_part(data: bytes) -> Element:
    """The root of a docx file's main part, once every part that the package refers to has been read.

    Raises:
        ParseError: a part is malformed.
        Exception: one of ``BROKEN_PACKAGE``: no package of a document, or a part is missing or damaged.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        package = _Package(archive)
        main = package.parts()
        if package.kind(main) != _MAIN:
            raise ValueError(f"expected a document, got {package.kind(main)!r}")
        return parse_xml(archive.read(main))


class _Package:
    """The parts of one package."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        types = parse_xml(archive.read("[Content_Types].xml"))
        self._by_name = {i.attrib["PartName"].lower(): i.attrib["ContentType"] for i in types.iter(f"{_TYPES}Override")}
        self._by_end = {i.attrib["Extension"].lower(): i.attrib["ContentType"] for i in types.iter(f"{_TYPES}Default")}

    def kind(self, name: str) -> str:
        """The content type of a part. Raises KeyError if it has none."""
        override = self._by_name.get(f"/{name.lower()}")
        return override or self._by_end[posixpath.splitext(name)[1].removeprefix(".").lower()]

    def parts(self) -> str:
        """Reads every part that is referred to, in the package or in one of its parts; the name of the main part."""
        first = self._targets("")
        waiting, seen = [name for _, name in first], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                content = self._archive.read(name)
                if self.kind(name).endswith("+xml"):
                    parse_xml(content)
                waiting += [target for _, target in self._targets(name)]
        main = [name for kind, name in first if kind == _OFFICE_DOCUMENT]
        if len(main) != 1:
            raise ValueError(f"expected one main part, got {len(main)}")
        return main[0]

    def _targets(self, source: str) -> list[tuple[str, str]]:
        """(relation, name) of the parts that a part refers to; ``""`` is the package itself."""
        folder, name = posixpath.split(source)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        if source and path not in self._archive.NameToInfo:
            return []
        items = list(parse_xml(self._archive.read(path)).iter(_RELATION))
        inside = [item.attrib for item in items if item.get("TargetMode", "Internal") == "Internal"]
        return [
            (item["Type"], posixpath.normpath(posixpath.join("/", folder, item["Target"])).lstrip("/"))
            for item in inside
        ]


_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_MARKS = {f"{_W}tab": "\t", f"{_W}ptab": "\t", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}


def _member(data: bytes, name: str) -> Element | None:
    """The XML of a member of the zip file; None if there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return parse_xml(archive.read(name)) if name in archive.namelist() else None
    except (zipfile.BadZipFile, ElementTree.ParseError):
        return None


def docx_body(data: bytes) -> Element | None:
    """``w:body`` of a docx file, None for anything else, also for a file that lacks a part that it refers to."""
    try:
        document = read_document_part(data)
    except (*BROKEN_PACKAGE, ElementTree.ParseError):
        return None
    return None if document.tag != f"{_W}document" else document.find(f"{_W}body")


def paragraph_text(paragraph: Element) -> str:
    """The text of a ``w:p``: its runs and links, with tabs and line breaks, without page breaks."""
    runs = [run for child in paragraph for run in ([child] if child.tag == f"{_W}r" else _linked(child))]
    return "".join(_run_text(part) for run in runs for part in run)


def _linked(child: Element) -> list[Element]:
    return child.findall(f"{_W}r") if child.tag == f"{_W}hyperlink" else []


def _run_text(part: Element) -> str:
    if part.tag == f"{_W}t":
        return part.text or ""
    if part.tag == f"{_W}br":
        return "\n" if part.get(f"{_W}type", "textWrapping") == "textWrapping" else ""
    return _MARKS.get(part.tag, "")


def paragraphs(data: bytes) -> list[str] | None:
    """Texts of a document's paragraphs outside tables; None if it is neither docx nor odt."""
    body = docx_body(data)
    if body is not None:
        return [paragraph_text(paragraph) for paragraph in body.findall(f"{_W}p")]
    content = _member(data, "content.xml")
    if content is None:
        return None
    return ["".join(_odt_text(paragraph)) for paragraph in content.iter(f"{_TEXT}p")]


def _odt_text(paragraph: Element) -> Iterator[str]:
    """The text of the paragraph and of its spans, as OSWorld reads it."""
    yield paragraph.text or ""
    for child in paragraph:
        if child.tag == f"{_TEXT}span":
            yield child.text or ""
            yield from (inner.tail or "" for inner in child)
        yield child.tail or ""


def compare_docx_files(
    actual: bytes | None,
    expected: bytes | None,
    *,
    ignore_blanks: bool = True,
    ignore_case: bool = False,
    ignore_order: bool = False,
    content_only: bool = False,
    fuzzy_match: bool = False,
    delete_empty_lines: bool = False,
    **options: Any,
) -> float:
    """1 when two documents of one format have the same paragraphs, else 0; a similarity in [0, 1] on request.

    Args:
        ignore_blanks: compare the full texts, with every run of white space as one space; else by paragraph.
        content_only: return the similarity (``rules.likeness``).
        fuzzy_match: return the similarity (``rules.likeness``).
        options: ignored; task files have further options that OSWorld ignores as well.
    """
    del options
    if not actual or not expected or (docx_body(actual) is None) != (docx_body(expected) is None):
        return 0.0
    texts = [paragraphs(actual), paragraphs(expected)]
    if texts[0] is None or texts[1] is None:
        return 0.0
    left, right = (_arranged(lines or [], ignore_order, delete_empty_lines, ignore_case) for lines in texts)
    if content_only or ignore_blanks:
        one, other = (re.sub(r"\s+", " ", "\n".join(lines)).strip() for lines in (left, right))
        return likeness(one, other) if content_only or fuzzy_match else float(one == other)
    if len(left) != len(right):
        return 0.0
    if fuzzy_match and left:
        return sum(likeness(one, other) for one, other in zip(left, right, strict=True)) / len(left)
    return float(left == right)


def _arranged(lines: list[str], by_name: bool, no_empty: bool, lower: bool) -> list[str]:
    lines = sorted(lines) if by_name else lines
    lines = [line for line in lines if line.strip()] if no_empty else lines
    return [line.lower() for line in lines] if lower else lines


def compare_init_lines(actual: bytes | None, expected: bytes | None) -> float:
    """1 when the paragraphs of the shorter docx file are the first paragraphs of the other."""
    left, right = (docx_body(data) if data else None for data in (actual, expected))
    if left is None or right is None:
        return 0.0
    lines = ([paragraph_text(paragraph) for paragraph in body.findall(f"{_W}p")] for body in (left, right))
    return float(all(one == other for one, other in zip(*lines, strict=False)))


def compare_docx_tables(actual: bytes | None, expected: bytes | None) -> float:
    """1 when both docx files have the same tables, cell by cell, ignoring leading and trailing blanks."""
    if not actual or not expected:
        return 0.0
    left, right = docx_body(actual), docx_body(expected)
    return float(left is not None and right is not None and _tables(left) == _tables(right))


def _tables(body: Element) -> list[list[list[str]]]:
    return [
        [
            ["\n".join(paragraph_text(p) for p in cell.findall(f"{_W}p")).strip() for cell in row.findall(f"{_W}tc")]
            for row in table.findall(f"{_W}tr")
        ]
        for table in body.findall(f"{_W}tbl")
    ]


def contains_page_break(document: bytes | None, rules: Mapping[str, Any]) -> float:
    """1 when the docx file has page breaks (exactly ``rules["page_break_count"]``, if given)."""
    body = docx_body(document) if document else None
    if body is None:
        return 0.0
    breaks = [b for p in body.findall(f"{_W}p") for b in p.findall(f"{_W}r//{_W}br") if b.get(f"{_W}type") == "page"]
    return float(rules.get("page_break_count", len(breaks)) == len(breaks) and bool(breaks))
