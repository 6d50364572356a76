"""Reads text documents (docx, odt) and presentations (pptx, odp): texts and some formats. Standard library only."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from osworld_gym.tasks.evaluation.metrics.office.sheets import (
    FO,
    OFFICE,
    STYLE,
    TABLE,
    TEXT,
    Element,
    opened,
    parse_part,
)

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_OFF = ("0", "false", "none")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph. ``bold``, ``italic`` and ``underline`` are true if all of its words are.

    ``parts`` is its text as page breaks divide it: a break before the paragraph makes an empty first part.
    """

    parts: tuple[str, ...]
    style: str = ""
    align: str = "left"
    bold: bool = False
    italic: bool = False
    underline: bool = False
    line_spacing: float = 1.0
    listed: bool = False

    @property
    def text(self) -> str:
        """Its whole text."""
        return "".join(self.parts)

    @property
    def page_break(self) -> bool:
        """Whether a page break is before, in or after it."""
        return len(self.parts) > 1


@dataclass(frozen=True, slots=True)
class Document:
    """Paragraphs outside tables, tables as rows of cell texts, and the number of pictures."""

    paragraphs: tuple[Paragraph, ...]
    tables: tuple[tuple[tuple[str, ...], ...], ...] = ()
    pictures: int = 0

    @property
    def pages(self) -> list[list[str]]:
        """The texts, those that are not blank, between page breaks."""
        pages: list[list[str]] = [[]]
        for paragraph in self.paragraphs:
            for number, part in enumerate(paragraph.parts):
                if number:
                    pages.append([])
                if part.strip():
                    pages[-1].append(part.strip())
        return pages


def read_document(data: bytes) -> Document:
    """The text of a docx or odt file.

    Raises:
        ValueError: it is neither.
    """
    with opened(data, "docx or odt") as archive:
        if "word/document.xml" in archive.namelist():
            return _docx(archive)
        return _odt(parse_part(archive, "content.xml"))


def _docx(archive: zipfile.ZipFile) -> Document:
    names = {}
    if "word/styles.xml" in archive.namelist():
        for style in parse_part(archive, "word/styles.xml").iter(f"{_W}style"):
            name = style.find(f"{_W}name")
            names[style.get(f"{_W}styleId", "")] = "" if name is None else name.get(f"{_W}val", "")
    body = parse_part(archive, "word/document.xml").find(f"{_W}body")
    if body is None:
        raise KeyError("w:body")
    tables = tuple(
        tuple(tuple(_docx_text(cell) for cell in row.iter(f"{_W}tc")) for row in table.iter(f"{_W}tr"))
        for table in body.iter(f"{_W}tbl")
    )
    pictures = sum(1 for _ in body.iter(f"{_A}blip"))
    return Document(tuple(_docx_paragraph(p, names) for p in body.iterfind(f"{_W}p")), tables, pictures)


def _docx_text(element: Element) -> str:
    return "".join(t.text or "" for t in element.iter(f"{_W}t"))


def _docx_paragraph(paragraph: Element, names: Mapping[str, str]) -> Paragraph:
    def value(path: str, default: str) -> str:
        element = paragraph.find("/".join(f"{_W}{part}" for part in path.split("/")))
        return default if element is None else element.get(f"{_W}val", default)

    runs = [run for run in paragraph.iter(f"{_W}r") if _docx_text(run).strip()]

    def all_runs(mark: str) -> bool:
        marks = [run.find(f"{_W}rPr/{_W}{mark}") for run in runs]
        return bool(marks) and all(m is not None and m.get(f"{_W}val", "1") not in _OFF for m in marks)

    spacing = paragraph.find(f"{_W}pPr/{_W}spacing")
    line = "240" if spacing is None or spacing.get(f"{_W}lineRule") != "auto" else spacing.get(f"{_W}line", "240")
    style = value("pPr/pStyle", "")
    align = value("pPr/jc", "left")
    return Paragraph(
        parts=_docx_parts(paragraph),
        style=names.get(style, style),
        align={"start": "left", "end": "right", "both": "justify"}.get(align, align),
        bold=all_runs("b"),
        italic=all_runs("i"),
        underline=all_runs("u"),
        line_spacing=int(line) / 240,
        listed=paragraph.find(f"{_W}pPr/{_W}numPr") is not None,
    )


def _docx_parts(paragraph: Element) -> tuple[str, ...]:
    before = paragraph.find(f"{_W}pPr/{_W}pageBreakBefore")
    parts = [""] if before is None or before.get(f"{_W}val", "1") in _OFF else ["", ""]
    for element in paragraph.iter():
        if element.tag == f"{_W}br" and element.get(f"{_W}type") == "page":
            parts.append("")
        elif element.tag == f"{_W}t":
            parts[-1] += element.text or ""
    return tuple(parts)


def _odt(root: Element) -> Document:
    styles = {style.get(f"{STYLE}name", ""): style for style in root.iter(f"{STYLE}style")}
    body = root.find(f"{OFFICE}body/{OFFICE}text")
    if body is None:
        raise KeyError("office:text")
    tables = tuple(
        tuple(
            tuple("".join(cell.itertext()) for cell in row.iter(f"{TABLE}table-cell"))
            for row in table.iter(f"{TABLE}table-row")
        )
        for table in body.iter(f"{TABLE}table")
    )
    pictures = sum(1 for _ in body.iter(f"{_DRAW}image"))
    return Document(tuple(_odt_paragraph(p, styles) for p in _odt_texts(body)), tables, pictures)


def _odt_texts(element: Element) -> Iterator[Element]:
    """Paragraphs and headings in order, without those in tables."""
    for child in element:
        if child.tag in (f"{TEXT}p", f"{TEXT}h"):
            yield child
        elif child.tag != f"{TABLE}table":
            yield from _odt_texts(child)


def _odt_paragraph(paragraph: Element, styles: Mapping[str, Element]) -> Paragraph:
    name = paragraph.get(f"{TEXT}style-name", "")
    own = _odt_properties(styles.get(name))
    spans = [span for span in paragraph.iter(f"{TEXT}span") if "".join(span.itertext()).strip()]
    text = "".join(paragraph.itertext())
    spanned = bool(spans) and "".join("".join(span.itertext()) for span in spans) == text

    def has(key: str, wanted: str) -> bool:
        inner = [_odt_properties(styles.get(span.get(f"{TEXT}style-name", ""))) for span in spans]
        return own.get(key) == wanted or (spanned and all(properties.get(key) == wanted for properties in inner))

    style = styles.get(name)
    parent = name if style is None else style.get(f"{STYLE}parent-style-name", name)
    spacing = own.get(f"{FO}line-height", "100%")
    align = own.get(f"{FO}text-align", "left")
    before, after = (own.get(f"{FO}break-{where}") == "page" for where in ("before", "after"))
    return Paragraph(
        parts=(*([""] if before else []), text, *([""] if after else [])),
        style=re.sub(r"_([0-9a-f]{2})_", lambda m: chr(int(m.group(1), 16)), parent),
        align={"start": "left", "end": "right"}.get(align, align),
        bold=has(f"{FO}font-weight", "bold"),
        italic=has(f"{FO}font-style", "italic"),
        underline=has(f"{STYLE}text-underline-style", "solid"),
        line_spacing=float(spacing[:-1]) / 100 if spacing.endswith("%") else 1.0,
    )


def _odt_properties(style: Element | None) -> dict[str, str]:
    return {} if style is None else {key: value for part in style for key, value in part.attrib.items()}


def read_slides(data: bytes) -> list[list[str]]:
    """The texts of each slide's shapes, in the file's order, of a pptx or odp file.

    Raises:
        ValueError: it is neither.
    """
    with opened(data, "pptx or odp") as archive:
        if "ppt/presentation.xml" in archive.namelist():
            return [_shapes(parse_part(archive, path)) for path in _slide_paths(archive)]
        pages = parse_part(archive, "content.xml").iter(f"{_DRAW}page")
        return [[_lines(frame, f"{TEXT}p") for frame in page.iter(f"{_DRAW}text-box")] for page in pages]


def _slide_paths(archive: zipfile.ZipFile) -> Iterator[str]:
    relations = {r.get("Id"): r.get("Target", "") for r in parse_part(archive, "ppt/_rels/presentation.xml.rels")}
    for slide in parse_part(archive, "ppt/presentation.xml").iter(f"{_P}sldId"):
        yield f"ppt/{relations[slide.get(f'{_R}id')]}"


def _shapes(slide: Element) -> list[str]:
    return [_lines(shape, f"{_A}p") for shape in slide.iter(f"{_P}sp")]


def _lines(element: Element, paragraph: str) -> str:
    return "\n".join("".join(t for part in p.iter() for t in (part.text or "",)) for p in element.iter(paragraph))


def read_notes(data: bytes) -> list[str]:
    """All texts of a pptx file's notes pages, one text a page."""
    with opened(data, "pptx") as archive:
        names = sorted(n for n in archive.namelist() if re.fullmatch(r"ppt/notesSlides/notesSlide\d+\.xml", n))
        return ["\n".join(_shapes(parse_part(archive, name))) for name in names]
