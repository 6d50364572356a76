"""Metrics on office files, images and PDFs, by rules on their content. Files are passed as bytes.

A file that is missing, truncated or of another format scores 0, as the policy may have written it.
An unknown rule is an error, so that a mistake in a task file never scores 1.
"""

from __future__ import annotations

import io
import re
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from PIL import Image, UnidentifiedImageError

from osworld_gym.tasks.evaluation.metrics.office.sheets import Sheet, read_sheets
from osworld_gym.tasks.evaluation.metrics.office.texts import (
    Document,
    Paragraph,
    read_document,
    read_notes,
    read_slides,
)
from osworld_gym.tasks.evaluation.sidecar.calling import RuleError

Rules = Mapping[str, Any]
Read = TypeVar("Read")


def _known(metric: str, rules: Rules, keys: Sequence[str]) -> None:
    unknown = sorted(set(rules) - set(keys))
    if unknown or not rules:
        raise RuleError(f"{metric}: expected rules among {', '.join(keys)}, got {', '.join(unknown) or 'none'}")


def _read(reader: Callable[[bytes], Read], result: bytes | None) -> Read | None:
    """The parsed file; None if it is missing or of another format, as the policy may have written it."""
    try:
        return reader(result) if result else None
    except ValueError:
        return None


def _same(value: Any, wanted: Any) -> bool:
    """Whether the values are equal: numbers within 1e-6, ``{"matches": regex}`` by search in the text."""
    if isinstance(wanted, Mapping):
        return value is not None and re.search(wanted["matches"], str(value)) is not None
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return isinstance(value, int | float) and abs(value - wanted) < 1e-6
    return bool(value == wanted)


# --- spreadsheets -----------------------------------------------------------------------------------------------------


def check_sheet(result: bytes | None, rules: Rules) -> float:
    """1 when a workbook (xlsx, ods) satisfies the rules.

    Rules: ``sheet`` (a name; default the first), ``cells`` (``B7`` → value, null for an empty cell), ``formulas``
    (cell → regex), ``formats`` (cell → ``{"bold", "italic", "number_format", "fill"}``), ``sheets`` (all names in
    order), ``merged`` (ranges), ``frozen_rows``, ``charts`` (their number).
    """
    keys = ("sheet", "cells", "formulas", "formats", "sheets", "merged", "frozen_rows", "charts")
    _known("check_sheet", rules, keys)
    sheets = _read(read_sheets, result)
    if not sheets:
        return 0.0
    names = [sheet.name for sheet in sheets]
    if "sheets" in rules and names != rules["sheets"]:
        return 0.0
    name = rules.get("sheet", names[0])
    if name not in names:
        return 0.0
    return float(_sheet_holds(sheets[names.index(name)], rules))


def _sheet_holds(sheet: Sheet, rules: Rules) -> bool:
    def value(place: str, key: str) -> Any:
        cell = sheet.cells.get(place)
        entry = None if cell is None else getattr(cell, key)
        return None if key == "value" and entry == "" else entry

    cells = all(_same(value(place, "value"), wanted) for place, wanted in rules.get("cells", {}).items())
    formulas = all(
        re.search(pattern, value(place, "formula") or "") is not None
        for place, pattern in rules.get("formulas", {}).items()
    )
    formats = all(
        _same(value(place, key), wanted)
        for place, format in rules.get("formats", {}).items()
        for key, wanted in format.items()
    )
    merged = set(rules.get("merged", ())) <= set(sheet.merged)
    frozen = sheet.frozen_rows == rules.get("frozen_rows", sheet.frozen_rows)
    return cells and formulas and formats and merged and frozen and sheet.charts == rules.get("charts", sheet.charts)


# --- texts ------------------------------------------------------------------------------------------------------------


def check_document(result: bytes | None, rules: Rules) -> float:
    """1 when a text document (docx, odt) satisfies the rules.

    Rules: ``texts`` (the texts of all paragraphs that are not blank, in order), ``paragraphs`` (regex → ``{"style",
    "align", "bold", "italic", "underline", "page_break", "line_spacing", "listed"}`` of the one paragraph whose text
    matches), ``pages`` (per page, as page breaks divide the document, its texts that are not blank), ``tables`` (per
    table, rows of cell texts), ``pictures`` (their number).
    """
    _known("check_document", rules, ("texts", "paragraphs", "pages", "tables", "pictures"))
    document = _read(read_document, result)
    return float(document is not None and _document_holds(document, rules))


def _document_holds(document: Document, rules: Rules) -> bool:
    texts = [paragraph.text.strip() for paragraph in document.paragraphs if paragraph.text.strip()]
    tables = [[list(row) for row in table] for table in document.tables]
    whole: dict[str, Any] = {"texts": texts, "pages": document.pages, "tables": tables, "pictures": document.pictures}
    same = all(_same(value, rules.get(key, value)) for key, value in whole.items())
    return same and all(
        _paragraph_holds(document, pattern, wanted) for pattern, wanted in rules.get("paragraphs", {}).items()
    )


def _paragraph_holds(document: Document, pattern: str, wanted: Rules) -> bool:
    matching: list[Paragraph] = [p for p in document.paragraphs if re.search(pattern, p.text)]
    if len(matching) != 1:
        return False
    return all(_same(getattr(matching[0], key), value) for key, value in wanted.items())


# --- presentations ----------------------------------------------------------------------------------------------------


def check_slides(result: bytes | None, rules: Rules) -> float:
    """1 when a presentation (pptx, odp) satisfies the rules.

    Rules: ``slides`` (for each slide the texts of its shapes that are not blank), ``notes`` (regexes, each in some
    notes page of a pptx file).
    """
    _known("check_slides", rules, ("slides", "notes"))
    shapes = _read(read_slides, result)
    if shapes is None:
        return 0.0
    slides = [[text for text in slide if text.strip()] for slide in shapes]
    if "slides" in rules and slides != [list(slide) for slide in rules["slides"]]:
        return 0.0
    notes = _read(read_notes, result) or []
    return float(all(any(re.search(p, page) for page in notes) for p in rules.get("notes", ())))


# --- pictures and PDFs ------------------------------------------------------------------------------------------------


def check_image(result: bytes | None, rules: Rules) -> float:
    """1 when an image satisfies the rules; 0 for a file that is not an image.

    Rules: ``size`` ``[width, height]``, ``format`` (``PNG``, ``JPEG``, …), ``grey`` (whether every pixel is grey),
    ``pixels`` (list of ``[x, y, [r, g, b]]`` with x and y as fractions of the size), within ``tolerance`` (default 24).
    """
    _known("check_image", rules, ("size", "format", "grey", "pixels", "tolerance"))
    try:
        with Image.open(io.BytesIO(result or b"")) as image:
            kind, pixels = image.format, image.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        return 0.0
    tolerance = int(rules.get("tolerance", 24))
    checks: dict[str, Callable[[Any], bool]] = {
        "size": lambda wanted: list(pixels.size) == list(wanted),
        "format": lambda wanted: kind == wanted,
        "grey": lambda wanted: _is_grey(pixels) == wanted,
        "pixels": lambda wanted: all(_near(pixels, x, y, colour, tolerance) for x, y, colour in wanted),
    }
    return float(all(check(rules[key]) for key, check in checks.items() if key in rules))


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = image.split()
    return red.tobytes() == green.tobytes() == blue.tobytes()


def _near(image: Image.Image, x: float, y: float, colour: Sequence[int], tolerance: int) -> bool:
    pixel = image.getpixel((int(x * (image.width - 1)), int(y * (image.height - 1))))
    assert isinstance(pixel, tuple)
    return all(abs(int(a) - int(b)) <= tolerance for a, b in zip(pixel, colour, strict=True))


def check_pdf(result: bytes | None, rules: Rules) -> float:
    """1 when a PDF file satisfies the rules and is complete (has its end marker).

    Rules: ``pages`` (their number), ``letters`` (a text, all of whose characters but white space are among those that
    the file's fonts have: of another text, or of a blank page, some are missing).
    """
    _known("check_pdf", rules, ("pages", "letters"))
    data = result or b""
    whole = data.startswith(b"%PDF-") and b"%%EOF" in data[-64:]
    pages = len(re.findall(rb"/Type\s*/Page\b", data))
    if not whole or pages != rules.get("pages", pages):
        return 0.0
    wanted = set("".join(rules.get("letters", "").split()))
    return float(not wanted or wanted <= _pdf_characters(data))


#: of a font's table of characters (ToUnicode): lines ``<code> <character>``, and ``<first> <last> <characters>``
_PDF_CHAR = re.compile(rb"<[0-9A-Fa-f]+>\s*<([0-9A-Fa-f]+)>")
_PDF_RANGE = re.compile(rb"<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>\s*(?:<([0-9A-Fa-f]+)>|\[([^\]]*)\])")
_PDF_LARGEST, _PDF_RANGE_LENGTH = 1 << 20, 256  #: bytes of a table, and characters of a range; more is not read


def _pdf_characters(data: bytes) -> set[str]:
    """The characters that the embedded fonts of a PDF file have, by their tables."""
    found: set[bytes] = set()  # UTF-16, big-endian
    for stream in re.finditer(rb"stream\r?\n(.*?)endstream", data, re.DOTALL):
        table = _inflated(stream[1])
        for part in re.findall(rb"beginbfchar(.*?)endbfchar", table, re.DOTALL):
            found |= {_bytes_of(code) for code in _PDF_CHAR.findall(part)}
        for part in re.findall(rb"beginbfrange(.*?)endbfrange", table, re.DOTALL):
            for first, last, start, each in _PDF_RANGE.findall(part):
                found |= {_bytes_of(code) for code in re.findall(rb"<([0-9A-Fa-f]+)>", each)}
                count = min(int(last, 16) - int(first, 16) + 1, _PDF_RANGE_LENGTH) if start else 0
                found |= {(int(start, 16) + i).to_bytes(len(start) // 2 + 1, "big")[1:] for i in range(count)}
    characters = "".join(code.decode("utf-16-be", errors="ignore") for code in found)
    return set(unicodedata.normalize("NFKC", characters))  # ligatures are the letters that they are of


def _bytes_of(code: bytes) -> bytes:
    return bytes.fromhex(code.decode()) if len(code) % 2 == 0 else b""


def _inflated(stream: bytes) -> bytes:
    """A stream as it is, or decompressed; empty for one of another coding."""
    if b"beginbf" in stream:
        return stream
    try:
        return zlib.decompressobj().decompress(stream, _PDF_LARGEST)
    except zlib.error:
        return b""
