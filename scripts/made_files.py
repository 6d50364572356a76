"""Made-up files of the right type for OSWorld's tasks, in OSWorld's cache layout: whole, small, and never the solution.

The real files are a download of several gigabytes. What is tested with these (set-up, an evaluator that runs to its
end, no reward for doing nothing) depends on a file's form and hardly on its content. A file for the setup and a gold
file differ in content, as a task and its solution do.
"""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath

from PIL import Image, ImageDraw

from osworld_gym.tasks.setup.file_cache import TaskFile
from osworld_gym.tasks.suites.desktop.content.decks import make_pptx
from osworld_gym.tasks.suites.desktop.content.media import make_wav, picture
from osworld_gym.tasks.suites.desktop.content.packed import pack
from osworld_gym.tasks.suites.desktop.content.sheets import make_xlsx
from osworld_gym.tasks.suites.desktop.content.texts import make_docx, make_odt
from osworld_gym.tasks.suites.osworld.requirements import files_of
from osworld_gym.tasks.task import Task

PROFILE = ".thunderbird/t5q2a5hp.default-release"  # the name of the profile in OSWorld's tasks
SETUP, GOLD = 0, 1  # variants of a file's content
#: tasks for which generated files do not work → the reason
LIMITS = {
    "12382c62": "the gold file has no chart",
    "1954cced": "the gold file has no pivot table",
    "1de60575": "the gold file has no pivot table",
    "2c1ebcd7": "the documents have no references",
    "51719eea": "the gold file has no pivot table",
    "535364ea": "the gold file has no pivot table",
    "5df7b33a": "the archive does not hold the book that is opened",
    "6ada715d": "the gold file has no picture",
    "dd84e895": "the profile's folder has no mails",
    "dfac9ee8": "the profile has no account",
}
#: (first eight characters of a task's id, name of its file) → a script, where the task depends on what it does
SCRIPTS = {
    ("4d117223", "setup.sh"): "mkdir -p testDir/inner; touch testDir/a testDir/inner/b; chmod 600 testDir/a\n",
    ("4d117223", "eval.sh"): 'test -z "$(find testDir -type f ! -perm 644)" && '
    "echo 'All files have the correct permissions.'\n",
    ("5c1075ca", "setup.sh"): "mkdir -p test_environment/one/two test_environment/fails; cd test_environment\n"
    "touch a_failed.ipynb one/b_failed.ipynb one/two/c_failed.ipynb one/d.ipynb\n",
    ("5c1075ca", "eval.sh"): "cd test_environment/fails && test \"$(find . -type f | sort | tr '\\n' ' ')\" = "
    "'./a_failed.ipynb ./one/b_failed.ipynb ./one/two/c_failed.ipynb ' && echo 'Evaluation successful.'\n",
    ("6f56bf42", "setup.sh"): "mkdir -p dir1 dir2 dir3; echo made up > file1\n",
    ("6f56bf42", "eval.sh"): "for folder in dir1 dir2 dir3; do\n"
    '    cmp -s file1 $folder/file1 && echo "Success: file1 exists in $folder." || echo "$folder: no file1"\ndone\n',
}
_DOWNLOAD = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_")


def fill_cache(root: Path, task: Task) -> None:
    """Writes every file that the task's steps and evaluator fetch below ``root``."""
    for task_file in files_of(task):
        path = root / task_file.relative_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made_file(task_file))


def made_file(task_file: TaskFile) -> bytes:
    """The content for one name of the cache; what a step downloads has the URL's uuid in its name."""
    script = SCRIPTS.get((task_file.task_id[:8], PurePosixPath(task_file.url).name))
    if script is not None:
        return script.encode()
    variant = SETUP if _DOWNLOAD.match(task_file.name) and "gold" not in task_file.name.lower() else GOLD
    return of_suffix(PurePosixPath(task_file.name).suffix.lower(), variant)


@cache
def of_suffix(suffix: str, variant: int) -> bytes:
    """A file of that type; an unknown type is text."""
    return MAKERS.get(suffix, _text)(variant)


def _lines(variant: int, count: int = 24) -> list[str]:
    words = ("river", "winter", "market", "letter", "garden", "signal", "copper", "engine")
    return [
        f"Line {i + 1} of version {variant}: the {words[(i * 3 + variant) % 8]} and the {words[i % 8]}."
        for i in range(count)
    ]


def _text(variant: int) -> bytes:
    return "".join(f"{line}\n" for line in _lines(variant)).encode()


def _rows(variant: int) -> list[list[str | int | float | None]]:
    head: list[str | int | float | None] = ["Name", "Date", "Amount", "Price", "Total", "Notes"]
    return [head] + [
        [f"Item {i}", f"2023-0{1 + i % 9}-1{i % 10}", i + variant, 2.5 * i, None, ""] for i in range(1, 25)
    ]


def _xlsx(variant: int) -> bytes:
    """One sheet before the task; a solution has more."""
    names = ["Sheet1"] if variant == SETUP else ["Sheet1", "Sheet2", "Sheet3"]
    return make_xlsx({name: _rows(variant + i) for i, name in enumerate(names)})


def _csv(variant: int) -> bytes:
    lines = (",".join("" if cell is None else str(cell) for cell in row) for row in _rows(variant))
    return "".join(f"{line}\n" for line in lines).encode()


def _ods(variant: int) -> bytes:
    rows = "".join(
        "<table:table-row>"
        + "".join(
            f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>' for cell in row
        )
        + "</table:table-row>"
        for row in _rows(variant)
    )
    names = "".join(f' xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in ("office", "table", "text"))
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-content{names} office:version="1.2"><office:body>'
        f'<office:spreadsheet><table:table table:name="Sheet1">{rows}</table:table></office:spreadsheet></office:body>'
        "</office:document-content>"
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    manifest = (
        '<?xml version="1.0"?><manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">'
        f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/><manifest:file-entry '
        'manifest:full-path="content.xml" manifest:media-type="text/xml"/></manifest:manifest>'
    )
    return pack({"mimetype": kind, "content.xml": content, "META-INF/manifest.xml": manifest}, stored=["mimetype"])


_SECTION = (
    '<w:sectPr><w:pgSz w:w="11906" w:h="16838"/><w:pgMar w:top="1440" w:right="1440" w:bottom="1440" w:left="1440" '
    'w:header="720" w:footer="720" w:gutter="0"/></w:sectPr>'
)
_TABLE = (
    '<w:tbl><w:tblPr/><w:tblGrid><w:gridCol w:w="4000"/></w:tblGrid><w:tr><w:tc><w:p><w:r><w:t>solved</w:t></w:r></w:p>'
    "</w:tc></w:tr></w:tbl><w:p/>"
)


def _docx(variant: int) -> bytes:
    """Paragraphs and one section; a solution has a table as well."""
    plain = make_docx([("A made-up document", "Title"), *_lines(variant)])
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(plain)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "word/document.xml":
                end = (_TABLE if variant == GOLD else "") + _SECTION + "</w:body>"
                data = data.replace(b"</w:body>", end.encode())
            new.writestr(info, data)
    return buffer.getvalue()


def _pptx(variant: int) -> bytes:
    return make_pptx([(f"Slide {i} of version {variant}", _lines(variant + i, 4)) for i in range(1, 16 + variant)])


def _image(variant: int) -> Image.Image:
    image = picture(320 + 80 * variant, 240 + 60 * variant)
    if variant == GOLD:
        ImageDraw.Draw(image).rectangle((10, 120, 300, 290), (20, 20, 60))
    return image


def _saved(kind: str) -> Callable[[int], bytes]:
    def make(variant: int) -> bytes:
        buffer = io.BytesIO()
        _image(variant).save(buffer, kind)
        return buffer.getvalue()

    return make


def _pdf(variant: int) -> bytes:
    """Pages of text in a standard font, with a correct cross-reference table."""
    pages = [_lines(variant + page, 20) for page in range(3 + variant)]
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for i, lines in enumerate(pages):
        shown = " ".join(f"({line}) Tj T*" for line in lines)
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET"
        resources = "/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]{resources}/Contents {5 + 2 * i} 0 R>>")
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj{content}endobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer<</Size {len(objects) + 1}/Root 1 0 R>>\n"
    return body + f"{end}startxref\n{len(body)}\n%%EOF\n".encode()


def _ffmpeg(suffix: str, *arguments: str) -> Callable[[int], bytes]:
    def make(variant: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"made{suffix}"
            filled = [argument.format(pitch=440 + 220 * variant, rate=5 + 5 * variant) for argument in arguments]
            subprocess.run(["ffmpeg", "-loglevel", "error", *filled, str(path)], check=True)
            return path.read_bytes()

    return make


_SOUND = ("-f", "lavfi", "-i", "sine=frequency={pitch}:duration=4")
_FILM = ("-f", "lavfi", "-i", "testsrc=size=320x240:rate={rate}:duration=4")


def _zip(variant: int) -> bytes:
    names = ("notes.txt", "table.csv", "image.png", "report.docx", "package.json", "sheet.xlsx")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, of_suffix(PurePosixPath(name).suffix, variant))
    return buffer.getvalue()


def _tar(variant: int) -> bytes:
    """Some files, and a Thunderbird profile where the tasks expect it."""
    ini = "[Profile0]\nName=default-release\nIsRelative=1\nPath=t5q2a5hp.default-release\nDefault=1\n"
    files = {
        "made/notes.txt": _text(variant),
        ".thunderbird/profiles.ini": ini.encode(),
        f"{PROFILE}/prefs.js": f'user_pref("mail.made.version", {variant});\n'.encode(),
        f"{PROFILE}/abook.sqlite": b"",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tape:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tape.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _xz(variant: int) -> bytes:
    import lzma

    return lzma.compress(_tar(variant))


def _epub(variant: int) -> bytes:
    page = f"<html><body><p>{'</p><p>'.join(_lines(variant))}</p></body></html>"
    package = '<package xmlns="http://www.idpf.org/2007/opf" version="2.0"><metadata/><manifest/><spine/></package>'
    parts = {"mimetype": "application/epub+zip", "OEBPS/page.html": page, "OEBPS/content.opf": package}
    return pack(parts, stored=["mimetype"])


def _xcf(variant: int) -> bytes:
    """GIMP's format with one 1×1 layer is not worth a writer; GIMP opens a PNG under this name as well."""
    return _saved("PNG")(variant)


MAKERS: dict[str, Callable[[int], bytes]] = {
    ".xlsx": _xlsx,
    ".ods": _ods,
    ".csv": _csv,
    ".docx": _docx,
    ".odt": lambda variant: make_odt(_lines(variant)),
    ".pptx": _pptx,
    ".pdf": _pdf,
    ".png": _saved("PNG"),
    ".jpg": _saved("JPEG"),
    ".jpeg": _saved("JPEG"),
    ".webp": _saved("WEBP"),
    ".gif": _saved("GIF"),
    ".xcf": _xcf,
    ".mp4": _ffmpeg(".mp4", *_FILM, *_SOUND, "-shortest"),
    ".mp3": _ffmpeg(".mp3", *_SOUND),
    ".wav": lambda variant: make_wav(3.0, 440.0 + 220 * variant),
    ".zip": _zip,
    ".vsix": _zip,
    ".whl": _zip,
    ".gz": lambda variant: gzip.compress(_tar(variant), mtime=0),
    ".xz": _xz,
    ".epub": _epub,
    ".json": lambda variant: f'{{"made": true, "version": {variant}}}\n'.encode(),
    ".html": lambda variant: f"<!doctype html><title>Version {variant}</title><p>Made up.</p>\n".encode(),
    ".py": lambda variant: f'"""Made up."""\n\nVERSION = {variant}\nprint(VERSION)\n'.encode(),
    ".sh": lambda variant: f"#!/bin/sh\necho version {variant}\n".encode(),
    ".js": lambda variant: f"console.log({variant});\n".encode(),
    ".srt": lambda variant: f"1\n00:00:00,000 --> 00:00:0{2 + variant},000\nMade up.\n".encode(),
}
