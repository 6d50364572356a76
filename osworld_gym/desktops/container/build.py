"""Builds the image: on Debian's official image if it can be pulled, else on a base created with debootstrap."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osworld_gym.desktops.container.desktop import ContainerDesktop
from osworld_gym.desktops.container.engine import engine_errors
from osworld_gym.desktops.container.image import DEBIAN, SUITE, tag, write_context
from osworld_gym.desktops.home_template.applications import APPS
from osworld_gym.desktops.home_template.build import write_home
from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.errors import DesktopError, FailureReason

if TYPE_CHECKING:
    import docker

BASE = f"osworld-gym/debian:{SUITE}"
MIRROR = "http://deb.debian.org/debian"
SECURITY = "http://deb.debian.org/debian-security"
SCREEN = (1920, 1080)  # OSWorld's
BUILD = 3600  # seconds without output from the engine
Say = Callable[[str], None]


def build(client: docker.DockerClient, variant: str, base: str | None, mirror: str | None, say: Say) -> str:
    """Builds a variant; returns the image's name.

    Args:
        base: the image to build on; None: Debian's if it can be pulled, else one created with debootstrap.
        mirror: the Debian mirror; None: this machine's mirror if it runs Debian, else the official one.
        say: called with each line of progress.

    Raises:
        DesktopError: ``never_ready``; the message states what failed.
    """
    main, security = (mirror, None) if mirror else host_mirrors(sources())
    chosen = base or _find_base(client, main or MIRROR, say)
    arguments = {"MIRROR": main or "", "SECURITY": security or ""} | proxies()
    template = host_template(variant)
    _build_with(client, variant, chosen, arguments, template, say)
    if variant == "full" and template is None:
        with tempfile.TemporaryDirectory(prefix="osworld-gym-home-") as folder:
            home = Path(folder) / "home"
            say("starts each application once in a separate container, to create the template of their settings")
            desktop = ContainerDesktop(*SCREEN, image=tag(variant))
            with desktop:
                write_home(desktop, APPS, home, say)
            _build_with(client, variant, chosen, arguments, home, say)
    return tag(variant)


def host_template(variant: str) -> Path | None:
    """This machine's home template, if it has one and the variant is ``full``."""
    template = find_template() if variant == "full" else None
    return None if template is None else template.path


def _build_with(
    client: docker.DockerClient,
    variant: str,
    base: str,
    arguments: Mapping[str, str],
    template: Path | None,
    say: Say,
) -> None:
    """Builds from a temporary folder and removes the image that had the name before."""
    name = tag(variant)
    with tempfile.TemporaryDirectory(prefix="osworld-gym-image-") as folder:
        write_context(Path(folder), variant, base, template)
        with engine_errors(FailureReason.never_ready, f"building {name}"):
            before = _ident(client, name)
            lines = client.api.build(
                path=folder, tag=name, buildargs=dict(arguments), network_mode="host", rm=True, forcerm=True,
                decode=True, timeout=BUILD,
            )  # fmt: skip
            follow(lines, say)
            if before and before != _ident(client, name):
                _forget(client, before)


def _ident(client: docker.DockerClient, name: str) -> str:
    """The image's id; empty if it does not exist."""
    import docker

    with contextlib.suppress(docker.errors.ImageNotFound):
        return str(client.images.get(name).id)
    return ""


def _forget(client: docker.DockerClient, ident: str) -> None:
    """Removes an image whose name a new one has taken, unless it is in use."""
    import docker

    with contextlib.suppress(docker.errors.APIError):
        client.api.remove_image(ident)


def follow(lines: Iterable[Mapping[str, Any]], say: Say) -> None:
    """Passes the engine's progress to ``say``. Raises DesktopError with the engine's error."""
    for line in lines:
        if "error" in line:
            raise DesktopError(FailureReason.never_ready, f"the build failed: {line['error']}")
        if text := str(line.get("stream", "")).strip():
            say(text)


def _find_base(client: docker.DockerClient, mirror: str, say: Say) -> str:
    import docker

    with engine_errors(FailureReason.never_ready, "looking for the base image"):
        held = {name for image in client.images.list() for name in image.tags}
        for name in (DEBIAN, BASE):
            if name in held:
                return name
        try:
            say(f"pulling {DEBIAN}")
            client.images.pull(*DEBIAN.split(":"))
            return DEBIAN
        except docker.errors.APIError as error:
            say(f"{DEBIAN} cannot be pulled ({error.explanation or error}); making a base with debootstrap")
    bootstrap(client, mirror, say)
    return BASE


def bootstrap(client: docker.DockerClient, mirror: str, say: Say) -> None:
    """Creates the base image from Debian packages with debootstrap; requires root.

    Raises:
        DesktopError: ``never_ready``: not root, or debootstrap is missing or failed.
    """
    if shutil.which("debootstrap") is None:
        raise DesktopError(
            FailureReason.never_ready, "debootstrap is missing; fix: apt-get update && apt-get install -y debootstrap"
        )
    if os.geteuid() != 0:
        raise DesktopError(FailureReason.never_ready, "debootstrap requires root; fix: sudo osworld-gym build-image")
    with tempfile.TemporaryDirectory(prefix="osworld-gym-base-") as folder:
        root, archive = Path(folder) / "root", Path(folder) / "base.tar"
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, str(root), mirror]
        _run(command, os.environ | proxies(), say)
        _run(["tar", "--create", "--file", str(archive), "--directory", str(root), "."], os.environ, say)
        with engine_errors(FailureReason.never_ready, f"importing {BASE}"):
            client.api.import_image_from_file(str(archive), *BASE.split(":"))


def _run(command: list[str], env: Mapping[str, str], say: Say) -> None:
    last = ""
    with subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            last = line.strip()
            say(last)
    if child.returncode != 0:
        raise DesktopError(FailureReason.never_ready, f"{command[0]} ended with status {child.returncode}: {last}")


def sources(folder: Path = Path("/etc/apt"), release: Path = Path("/etc/os-release")) -> str:
    """This machine's apt sources as text; empty if it does not run Debian, since its mirrors cannot be used then."""
    if not release.is_file() or not re.search(r"^ID=\"?debian\"?$", release.read_text(), re.M):
        return ""
    lists = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    return "\n".join(path.read_text() for path in lists if path.is_file() and path.suffix in (".list", ".sources"))


def host_mirrors(text: str) -> tuple[str | None, str | None]:
    """(mirror, security mirror) in apt sources, in the one-line or deb822 format; None for a missing one."""
    lines = [line for line in text.splitlines() if re.match(r"(deb\s|URIs:)", line)]
    urls = [url.rstrip("/") for line in lines for url in re.findall(r"https?://\S+", line)]
    main = [url for url in urls if url.endswith("/debian")]
    security = [url for url in urls if url.endswith("debian-security")]
    return (main[0] if main else None), (security[0] if security else None)


def proxies() -> dict[str, str]:
    """The proxy settings of this machine's apt and environment, as build arguments."""
    out = {name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy") if os.environ.get(name)}
    if shutil.which("apt-config") is not None and "http_proxy" not in out:
        asked = ["apt-config", "shell", "PROXY", "Acquire::http::Proxy"]
        output = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10).stdout
        if match := re.search(r"PROXY='(.+)'", output):
            out["http_proxy"] = match[1]
    return out
