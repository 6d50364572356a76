"""The main part of an Office Open XML package, read as strictly as OSWorld's library (python-docx) reads it."""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from xml.etree import ElementTree

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
        found = self._by_name.get(f"/{name.lower()}")
        return found or self._by_end[posixpath.splitext(name)[1].removeprefix(".").lower()]

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
