"""The image of the ``container`` provider: a build folder with Dockerfile, Debian packages and this package's guest.

Two variants: ``basic`` (an editor, a file manager, a terminal) and ``full`` (all applications). The folder can be built
anywhere with ``docker build FOLDER``. Nothing is downloaded from PyPI: the guest's pure Python modules are copied from
this Python's packages.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import osworld_gym.guest
from osworld_gym.desktops.home_template.apt import APPS, BASIC
from osworld_gym.guest.ports import FORWARDED, SERVER

REPOSITORY = "osworld-gym/desktop"
DEBIAN = "debian:bookworm-slim"
SUITE = "bookworm"
VARIANTS = ("full", "basic")  #: the preferred one first
CONTENT = "osworld-gym.content"  #: label with the hash of the guest inside
GUEST = Path(osworld_gym.guest.__file__).parent
LISTS = {"basic": (BASIC,), "full": (BASIC, APPS)}
#: packages that the guest requires in addition to those of the desktop
PYTHON = ("python3", "python3-xlib", "python3-pil", "python3-six", "python3-tk", "python-is-python3")
SYSTEM = ("ca-certificates", "procps", "socat", "tzdata")
LEFT_OUT = ("bubblewrap",)  #: the container is the sandbox
#: pure Python distributions that are not in Debian
MODULES = ("pyautogui", "mouseinfo", "pygetwindow", "pymsgbox", "pyrect", "pyscreeze", "pytweening", "pyperclip")

_DOCKERFILE = """\
# The desktop of osworld-gym, variant {variant}. Written by `osworld-gym build-image --dockerfile`; build it with
# `docker build --tag {tag} .`
ARG BASE={base}
FROM $BASE
ARG MIRROR=
ARG SECURITY=
RUN if [ -n "$MIRROR" ]; then rm -f /etc/apt/sources.list.d/debian.sources; \\
      echo "deb $MIRROR {suite} main" > /etc/apt/sources.list; \\
      echo "deb ${{SECURITY:-$MIRROR-security}} {suite}-security main" >> /etc/apt/sources.list; fi; \\
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\
      {packages} \\
    && apt-get clean && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --user-group --create-home --home-dir /home/user --shell /bin/bash user \\
    && rm -rf /home/user && install -d -o user -g user -m 755 /home/user \\
    && install -d -o user -g user -m 700 /run/osworld /run/user/1000 \\
    && echo 00000000000000000000000000000001 > /etc/machine-id
# an image keeps whole seconds of a folder's time: fontconfig would find its cache outdated in every new container
RUN find /usr/share/fonts /usr/local/share/fonts -type d -exec touch -d @1577836800 {{}} + && fc-cache -f
COPY python /opt/osworld_python
COPY --chown=1000:1000 template /opt/osworld_template
COPY guest /opt/osworld_guest
ENV PATH=/opt/osworld_guest/shims/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \\
    PYTHONPATH=/opt:/opt/osworld_python PYTHONDONTWRITEBYTECODE=1
LABEL {label}={content}
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 \\
    CMD ["python3", "-m", "osworld_guest.container", "health"]
EXPOSE {ports}
USER 1000:1000
WORKDIR /home/user
ENTRYPOINT ["python3", "-m", "osworld_guest.container"]
CMD ["serve"]
"""


def tag(variant: str) -> str:
    """The image's name."""
    return f"{REPOSITORY}:{variant}"


def packages(variant: str) -> list[str]:
    """The Debian packages of a variant, in the order of their lists."""
    named = [name for path in LISTS[variant] for name in path.read_text(encoding="utf-8").split()]
    return [name for name in dict.fromkeys([*named, *PYTHON, *SYSTEM]) if name not in LEFT_OUT]


def dockerfile(variant: str, content: str, base: str = DEBIAN) -> str:
    """The text of the Dockerfile; ``content`` is the hash of the guest that is copied."""
    names = " \\\n      ".join(packages(variant))
    values = {"variant": variant, "tag": tag(variant), "base": base, "suite": SUITE, "packages": names}
    ports = " ".join(map(str, (SERVER, *FORWARDED)))
    return _DOCKERFILE.format(**values, ports=ports, label=CONTENT, content=content)


def guest_content(folder: Path = GUEST) -> str:
    """A short hash of a guest's files, to detect an image with another version."""
    digest = hashlib.sha256()
    for path in guest_files(folder):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def guest_files(folder: Path) -> list[Path]:
    """The guest's files, sorted, without ``__pycache__``."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in files if "__pycache__" not in path.parts)


def write_context(folder: Path, variant: str, base: str = DEBIAN, template: Path | None = None) -> None:
    """Writes everything that a build requires to ``folder``.

    Args:
        folder: an empty folder, or one that does not exist and is created.
        variant: ``full`` or ``basic``.
        base: the image to build on.
        template: the folder with the initial content of HOME; None: a bare HOME.

    Raises:
        FileExistsError: ``folder`` is not empty.
        FileNotFoundError: a Python module is missing; the message has the fix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"expected an empty or missing folder, got {folder}; fix: choose a new folder")
    shutil.copytree(GUEST, folder / "guest", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = dockerfile(variant, guest_content(folder / "guest"), base)
    (folder / "Dockerfile").write_text(text, encoding="utf-8")
    for source, target in python_files(MODULES):
        path = folder / "python" / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    if template is not None:
        shutil.copytree(template, folder / "template", symlinks=True)
    else:
        (folder / "template").mkdir()


def python_files(names: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """(file, its path inside site-packages) of the pure Python distributions ``names`` installed in this Python."""
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError as error:
            raise FileNotFoundError(f"this Python lacks {name}; fix: pip install 'osworld-gym[guest]'") from error
        for file in files:
            if ".." not in file.parts and "__pycache__" not in file.parts and file.suffix in (".py", ".pyi"):
                yield Path(str(file.locate())), Path(*file.parts)
