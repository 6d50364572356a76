"""Reads spreadsheets (xlsx, ods) with the standard library: cells with value, formula and some formats."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from osworld_gym.tasks.evaluation.parsing import parse_xml
from osworld_gym.tasks.evaluation.sidecar.calling import Exhausted

Element = ElementTree.Element
Value = str | float | bool | None

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_ODF = "{urn:oasis:names:tc:opendocument:xmlns:"
OFFICE, TABLE, TEXT = f"{_ODF}office:1.0}}", f"{_ODF}table:1.0}}", f"{_ODF}text:1.0}}"
STYLE, FO = f"{_ODF}style:1.0}}", f"{_ODF}xsl-fo-compatible:1.0}}"
#: Excel's built-in number formats by their number
_BUILT_IN = {9: "0%", 10: "0.00%", 1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00"}
PART_LIMIT = 64 << 20  # bytes of one XML part, decompressed
MAX_CELLS = 1 << 20  # of a sheet, cells that are repeated included
MAX_STYLES = 1 << 16  # formats of cells; Excel and LibreOffice have fewer
REPEAT_LIMIT = 10_000  # a cell repeated more often is the empty filler of the sheet's rest


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. ``formula`` is without ``=`` (xlsx), or in OpenDocument's form (ods)."""

    value: Value
    formula: str | None = None
    bold: bool = False
    italic: bool = False
    number_format: str = "General"
    fill: str | None = None  #: RRGGBB


@dataclass(frozen=True, slots=True)
class Sheet:
    """One sheet: cells by name (``B7``), merged ranges (``A1:C1``), numbers of frozen top rows and of charts."""

    name: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    merged: tuple[str, ...] = ()
    frozen_rows: int = 0
    charts: int = 0


@contextmanager
def opened(data: bytes, kinds: str) -> Iterator[zipfile.ZipFile]:
    """Opens the file as a ZIP package; a missing or malformed part raises ValueError inside the context."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield archive
    except (zipfile.BadZipFile, ElementTree.ParseError, zlib.error, LookupError, EOFError, RuntimeError) as error:
        raise ValueError(f"{len(data)} bytes are no {kinds} file ({type(error).__name__}: {error})") from error


def parse_part(archive: zipfile.ZipFile, name: str) -> Element:
    """The root of one XML part.

    Raises:
        KeyError: there is no such part.
        Exhausted: it is larger than ``PART_LIMIT`` when decompressed.
    """
    if archive.getinfo(name).file_size > PART_LIMIT:
        raise Exhausted(f"{name} has more than {PART_LIMIT} bytes")
    return parse_xml(archive.read(name))


def read_sheets(data: bytes) -> list[Sheet]:
    """The sheets of an xlsx or ods file, in order.

    Raises:
        ValueError: it is neither format, or malformed.
    """
    with opened(data, "xlsx or ods") as archive:
        if "xl/workbook.xml" in archive.namelist():
            return list(_xlsx(archive))
        return list(_ods(parse_part(archive, "content.xml")))


def _xlsx(archive: zipfile.ZipFile) -> Iterator[Sheet]:
    shared = _shared_strings(archive)
    formats = _cell_formats(parse_part(archive, "xl/styles.xml")) if "xl/styles.xml" in archive.namelist() else []
    targets = {item.get("Id"): item.get("Target", "") for item in parse_part(archive, "xl/_rels/workbook.xml.rels")}
    for sheet in parse_part(archive, "xl/workbook.xml").iter(f"{_MAIN}sheet"):
        path = targets[sheet.get(f"{_R}id")]
        path = path.lstrip("/") if path.startswith("/") else f"xl/{path}"
        root = parse_part(archive, path)
        cells: dict[str, Cell] = {}
        for item in root.iter(f"{_MAIN}c"):
            cells[item.get("r", "")] = _xlsx_cell(item, shared, formats)
            _check_count(cells)
        merged = tuple(item.get("ref", "") for item in root.iter(f"{_MAIN}mergeCell"))
        frozen = [pane for pane in root.iter(f"{_MAIN}pane") if pane.get("state") == "frozen"]
        charts = len([name for name in archive.namelist() if re.fullmatch(r"xl/charts/chart\d+\.xml", name)])
        rows = int(float(frozen[0].get("ySplit", "0"))) if frozen else 0
        yield Sheet(
            sheet.get("name", ""), cells, merged, rows, charts if root.find(f"{_MAIN}drawing") is not None else 0
        )


def _shared_strings(archive: zipfile.ZipFile) -> list[str]:
    if "xl/sharedStrings.xml" not in archive.namelist():
        return []
    root = parse_part(archive, "xl/sharedStrings.xml")
    return ["".join(t.text or "" for t in item.iter(f"{_MAIN}t")) for item in root.iter(f"{_MAIN}si")]


def _cell_formats(styles: Element) -> list[dict[str, Any]]:
    """The fields of :class:`Cell` of each cell format (its index is a cell's ``s``)."""
    if len(styles.findall(f"{_MAIN}cellXfs/{_MAIN}xf")) > MAX_STYLES:
        raise Exhausted(f"it has more than {MAX_STYLES} cell formats")
    codes = {int(n.get("numFmtId", "0")): n.get("formatCode", "") for n in styles.iter(f"{_MAIN}numFmt")}
    fonts = [_font(font) for font in styles.iterfind(f"{_MAIN}fonts/{_MAIN}font")]
    fills = [fill.find(f"{_MAIN}patternFill/{_MAIN}fgColor") for fill in styles.iterfind(f"{_MAIN}fills/{_MAIN}fill")]
    out = []
    for xf in styles.iterfind(f"{_MAIN}cellXfs/{_MAIN}xf"):
        number, colour = int(xf.get("numFmtId", "0")), fills[int(xf.get("fillId", "0"))]
        rgb = None if colour is None else colour.get("rgb")
        out.append(
            fonts[int(xf.get("fontId", "0"))]
            | {"number_format": codes.get(number, _BUILT_IN.get(number, "General")), "fill": rgb and rgb[-6:].upper()}
        )
    return out


def _font(font: Element) -> dict[str, Any]:
    def on(name: str) -> bool:
        mark = font.find(f"{_MAIN}{name}")
        return mark is not None and mark.get("val", "1") not in ("0", "false")

    return {"bold": on("b"), "italic": on("i")}


def _xlsx_cell(cell: Element, shared: list[str], formats: list[dict[str, Any]]) -> Cell:
    kind, raw, formula = cell.get("t", "n"), cell.findtext(f"{_MAIN}v"), cell.find(f"{_MAIN}f")
    value: Value
    if kind == "inlineStr":
        value = "".join(t.text or "" for t in cell.iter(f"{_MAIN}t"))
    elif raw is None:
        value = None
    elif kind == "s":
        value = shared[int(raw)]
    elif kind == "b":
        value = raw == "1"
    else:
        value = float(raw) if kind == "n" else raw
    style = formats[int(cell.get("s", "0"))] if formats else {}
    return Cell(value, None if formula is None else formula.text, **style)


def _ods(root: Element) -> Iterator[Sheet]:
    bold = {
        style.get(f"{STYLE}name"): properties.get(f"{FO}font-weight") == "bold"
        for style in root.iter(f"{STYLE}style")
        for properties in style.iter(f"{STYLE}text-properties")
    }
    for table in root.iter(f"{TABLE}table"):
        cells: dict[str, Cell] = {}
        row_index = 0
        for row in table.iter(f"{TABLE}table-row"):
            repeat = int(row.get(f"{TABLE}number-rows-repeated", "1"))
            row_cells = list(_ods_row(row, bold))
            for copy in range(repeat if repeat < REPEAT_LIMIT else 0):
                cells |= {f"{letters(i)}{row_index + copy + 1}": cell for i, cell in row_cells}
                _check_count(cells)
            row_index += repeat
        yield Sheet(table.get(f"{TABLE}name", ""), cells)


def _ods_row(row: Element, bold: Mapping[str | None, bool]) -> Iterator[tuple[int, Cell]]:
    index = 0
    for item in row:
        repeat = int(item.get(f"{TABLE}number-columns-repeated", "1"))
        kind = item.get(f"{OFFICE}value-type")
        if kind is not None and repeat < REPEAT_LIMIT:
            number = item.get(f"{OFFICE}value")
            text = "\n".join("".join(p.itertext()) for p in item.iterfind(f"{TEXT}p"))
            cell = Cell(
                float(number) if number is not None else text,
                item.get(f"{TABLE}formula"),
                bold.get(item.get(f"{TABLE}style-name"), False),
            )
            yield from ((index + copy, cell) for copy in range(repeat))
        index += repeat


def _check_count(cells: Mapping[str, Cell]) -> None:
    if len(cells) > MAX_CELLS:
        raise Exhausted(f"a sheet has more than {MAX_CELLS} cells")


def letters(index: int) -> str:
    """The letters of a column from its index: 0 → A, 25 → Z, 26 → AA."""
    out = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        out = chr(65 + rest) + out
    return out
