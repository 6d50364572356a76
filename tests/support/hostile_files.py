"""Files that a policy could leave behind to exhaust what reads them: small, and large once they are read."""

import io
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path

from metric_cases import OFFICE, packed

MEGABYTE = bytes(1 << 20)
SHEET = f"{OFFICE}/spreadsheetml/2006/main"
RELATIONS = f"{OFFICE}/officeDocument/2006/relationships"


def zip_bomb(name: str, megabytes: int = 300) -> bytes:
    """A zip file with one member of zeros."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(name, "w") as file,
    ):
        for _ in range(megabytes):
            file.write(MEGABYTE)
    return buffer.getvalue()


def tar_bomb(megabytes: int = 300) -> bytes:
    """A compressed tar file with one member of zeros."""
    head = tarfile.TarInfo("x")
    head.size = megabytes << 20
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    body = [packer.compress(MEGABYTE) for _ in range(megabytes)]
    return b"".join([packer.compress(head.tobuf()), *body, packer.compress(bytes(1024)), packer.flush()])


def lying_zip(name: str, megabytes: int = 300) -> bytes:
    """A zip file whose directory states 16 bytes for a member of many megabytes."""
    data, size = zip_bomb(name, megabytes), struct.pack("<I", megabytes << 20)
    return data.replace(size, struct.pack("<I", 16))


def nested(data: bytes, depth: int) -> bytes:
    """The file within ``depth`` zip files."""
    return data if depth == 0 else packed({"a.zip": nested(data, depth - 1)})


def many_files(count: int) -> bytes:
    return packed({str(i): "" for i in range(count)})


def png_header(width: int, height: int) -> bytes:
    """A PNG file that states a size, with hardly any pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def billion_laughs(root: str) -> str:
    """An XML document of that root element, whose text is a billion words once its entities are expanded."""
    names = [f"l{i}" for i in range(10)]
    entities = [f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in pairwise(names)]
    return f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY l0 "laugh">{"".join(entities)}]><{root}>&l9;</{root}>'


def xlsx(*, styles: str = "", rows: str = "") -> bytes:
    """A workbook of one sheet."""
    relation = f'<Relationship Id="r1" Target="worksheets/sheet1.xml" Type="{RELATIONS}/worksheet"/>'
    sheets = f'<sheets><sheet name="a" sheetId="1" r:id="r1" xmlns:r="{RELATIONS}"/></sheets>'
    return deflated(
        {
            "xl/workbook.xml": f'<workbook xmlns="{SHEET}">{sheets}</workbook>',
            "xl/_rels/workbook.xml.rels": f"<Relationships>{relation}</Relationships>",
            "xl/styles.xml": f'<styleSheet xmlns="{SHEET}">{styles}</styleSheet>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><sheetData>{rows}</sheetData></worksheet>',
        }
    )


def many_styles(count: int) -> bytes:
    return xlsx(styles=f"<fonts><font/></fonts><fills><fill/></fills><cellXfs>{'<xf/>' * count}</cellXfs>")


def repeated_cells(count: int) -> bytes:
    """An OpenDocument sheet whose only cell is repeated in ``count`` rows and columns."""
    name = "urn:oasis:names:tc:opendocument:xmlns"
    cell = f'<t:table-cell o:value-type="float" o:value="1" t:number-columns-repeated="{count}"/>'
    row = f'<t:table-row t:number-rows-repeated="{count}">{cell}</t:table-row>'
    spaces = f'xmlns:o="{name}:office:1.0" xmlns:t="{name}:table:1.0"'
    return deflated({"content.xml": f'<o:body {spaces}><t:table t:name="a">{row}</t:table></o:body>'})


def deflated(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def endless_cookies(folder: Path) -> bytes:
    """A store of cookies that is a view without end."""
    path = folder / "cookies"
    connection = sqlite3.connect(path)
    words = "SELECT 1, hex(zeroblob(1000)) UNION ALL SELECT n + 1, w FROM more"
    connection.execute(f"CREATE VIEW cookies AS WITH RECURSIVE more(n, w) AS ({words}) SELECT * FROM more")
    connection.close()
    return path.read_bytes()
