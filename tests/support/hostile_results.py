"""Variants of a metric's result that a policy could leave behind: nearly right, of another form, damaged."""

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from metric_cases import packed, png_of
from PIL import Image

#: strings that line readers, parsers and comparisons treat in different ways
ODD_TEXTS = (
    "\ufeff",
    "\r",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\xa0",
    "\0",
    "\t",
    " ",
    "\n\n",
    "é",
    "\ud83d\ude00",
)
ODD_VALUES = (None, True, 0, 1.5, "", "x", [], {}, [None], float("nan"))


def variants(value: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """(name, value) of hostile forms of a result."""
    if isinstance(value, bytes):
        yield from _files(value, rng)
    elif isinstance(value, str):
        yield from ((name, data.decode("utf-8", "replace")) for name, data in _texts(value.encode(), rng))
    elif isinstance(value, dict | list):
        yield from _structures(value, rng)
    others = (None,) if value is None or isinstance(value, bytes) else ODD_VALUES  # OSWorld opens a file's path
    yield from ((f"is {other!r}", other) for other in others)


def _files(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    for share in (0.25, 0.5, 0.9):
        yield f"first {share:g}", data[: int(len(data) * share)]
    yield "twice", data * 2
    yield "junk behind", data + b"\0junk"
    yield "junk before", b"junk\0" + data
    for i in range(6):
        place = rng.randrange(max(1, len(data)))
        yield f"byte {i} changed", data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if data.startswith(b"\x89PNG"):
        yield from _pictures(data)
    elif zipfile.is_zipfile(io.BytesIO(data)):
        yield from _archives(data)
    elif data[:2] != b"\x1f\x8b":
        yield from _texts(data, rng)


def _texts(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    text = data.decode("utf-8", "replace")
    yield "CR LF", text.replace("\n", "\r\n").encode()
    yield "CR", text.replace("\n", "\r").encode()
    yield "no last line end", text.rstrip("\n").encode()
    yield "a line more", (text + "\n").encode()
    yield "lines twice", "".join(line * 2 for line in text.splitlines(True)).encode()
    yield "lines reversed", "\n".join(reversed(text.split("\n"))).encode()
    yield "upper case", text.upper().encode()
    yield "stripped", text.strip().encode()
    yield "commented", b"# " + data
    yield "no UTF-8", data + b"\xff\xfe"
    yield "UTF-16", text.encode("utf-16")
    for odd in ODD_TEXTS:
        place = rng.randrange(len(text) + 1)
        encoded = odd.encode("utf-8", "surrogatepass")
        yield f"{odd!r} inside", text[:place].encode() + encoded + text[place:].encode()
        yield f"{odd!r} before", encoded + data
        yield f"{odd!r} behind", data + encoded
        yield f"{odd!r} for line ends", text.encode().replace(b"\n", encoded)
    try:
        parsed = json.loads(text)
    except ValueError:
        return
    for name, other in _structures(parsed, rng):
        yield f"JSON {name}", json.dumps(other).encode()


def _structures(value: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        yield "reversed", list(reversed(value))
        yield "members twice", [member for member in value for _ in range(2)]
        yield "a member less", value[1:]
        for odd in ODD_VALUES:
            yield f"with {odd!r}", [*value, odd]
            yield f"first is {odd!r}", [odd, *value[1:]]
        for i, member in enumerate(value):
            for name, other in _structures(member, rng):
                yield f"{i}: {name}", [*value[:i], other, *value[i + 1 :]]
    elif isinstance(value, dict):
        yield "a key more", value | {"more": 1}
        for key in value:
            yield f"without {key}", {k: v for k, v in value.items() if k != key}
            yield f"{key} in upper case", {(k.upper() if k == key else k): v for k, v in value.items()}
            for odd in ODD_VALUES:
                yield f"{key} is {odd!r}", value | {key: odd}
            for name, other in _structures(value[key], rng):
                yield f"{key}: {name}", value | {key: other}
    elif isinstance(value, str):
        for odd in (" ", "/", "\n", "www.", "x"):
            yield f"{odd!r} behind", value + odd
            yield f"{odd!r} before", odd + value
        yield "upper case", value.upper()
        yield "empty", ""
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield "as text", str(value)
        yield "as float", float(value)
        yield "a little more", value + 1e-7


def _pictures(data: bytes) -> Iterator[tuple[str, bytes]]:
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGBA")
    for mode in ("L", "LA", "P", "RGB", "RGBA", "1", "I;16", "CMYK"):
        kind = "TIFF" if mode == "CMYK" else "PNG"
        yield f"mode {mode}", _saved(image.convert("L" if mode == "I;16" else mode).convert(mode), kind)
    for size in ((1, 1), (6, 6), (7, 7), (7, 500), (image.width, 1), (image.width + 1, image.height)):
        yield f"size {size}", _saved(image.resize(size), "PNG")
    yield "turned", _saved(image.transpose(Image.Transpose.ROTATE_90), "PNG")
    yield "mirrored", _saved(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "PNG")
    for kind in ("BMP", "GIF", "JPEG", "WEBP", "TIFF"):
        yield kind, _saved(image.convert("RGB"), kind)
    for shade in (0, 255):
        yield f"only {shade}", png_of(np.full((image.height, image.width, 3), shade, np.uint8))
    clear = image.copy()
    clear.putalpha(0)
    yield "clear", _saved(clear, "PNG")


def _saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def _archives(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = [(info.filename, archive.read(info)) for info in archive.infolist()]
    first, content = files[0]
    folder = first.rpartition("/")[0]
    inside = f"{folder}/" if folder else ""
    yield "a folder more", _zip([*files, (f"{inside}more/", b"")])
    yield "a folder more elsewhere", _zip([*files, ("elsewhere/", b"")])
    yield "a file in a folder more", _zip([*files, (f"{inside}more/file", b"x")])
    yield "a file more", _zip([*files, (f"{inside}more", b"x")])
    yield "a file more elsewhere", _zip([*files, ("elsewhere.txt", b"x")])
    yield "a file of a path outside", _zip([*files, ("../outside", b"x"), ("/outside", b"x")])
    yield "a file twice, first wrong", _zip([(first, b"wrong"), *files])
    yield "a file twice, last wrong", _zip([*files, (first, b"wrong")])
    yield "a file that is a folder", _zip([(f"{first}/", b""), *files[1:]])
    yield "a file that is in a folder", _zip([(f"{first}/x", content), *files[1:]])
    yield "a file less", _zip(files[1:])
    yield "a file empty", _zip([(first, b""), *files[1:]])
    yield "names with a point", _zip([(f"./{name}", part) for name, part in files])
    yield "names with two slashes", _zip([(name.replace("/", "//"), part) for name, part in files])
    yield "names in upper case", _zip([(name.upper(), part) for name, part in files])
    yield "names with backslashes", _zip([(name.replace("/", "\\"), part) for name, part in files])
    yield "contents reversed", _zip([(name, part[::-1]) for name, part in files])
    yield "only folders", _zip([(f"{name}/", b"") for name, _ in files])
    yield "no files", _zip([])
    yield "stored", packed(dict(files))
    yield "a tape", packed(dict(files), "tar")
    yield "a link on a tape", _linked(files)


def _zip(files: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        seen = set()
        for name, data in files:
            if name in seen:  # zipfile warns of a second one
                archive.NameToInfo.pop(name, None)
            seen.add(name)
            archive.writestr(name, data)
    return buffer.getvalue()


def _linked(files: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tape:
        for name, _ in files:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tape.addfile(link)
    return buffer.getvalue()
