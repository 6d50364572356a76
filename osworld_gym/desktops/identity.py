"""What the desktops of a provider are made of, as text with a hash, so that two results can be compared.

local       the home template: a hash of the applications' package versions and of the files that it is built from
container   the id of the Docker image
vm          SHA-256 of the disk's file, and the id of the image that runs it

For every other provider, and where it cannot be found out, it is not known. No desktop is started for this.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_text
from osworld_gym.desktops.home_template.find import find_template, packages
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.folders import cache_folder

NOT_KNOWN = "not known"
Options = Mapping[str, Any]


def desktop_identity(provider: str, options: Options) -> str:
    """The identity of the desktops of a provider with these options; ``not known`` if there is no way to tell."""
    if provider not in _IDENTITIES:
        return NOT_KNOWN
    try:
        return _IDENTITIES[provider](options)
    except (DesktopError, OSError):
        return NOT_KNOWN


def _sim(_options: Options) -> str:
    return f"simulated by osworld-gym {version('osworld-gym')}"


def _local(options: Options) -> str:
    """The installed template's version; of another folder than that, the hash of its manifest."""
    wanted = options.get("template", "auto")
    if wanted == "auto" and options.get("isolated", True):
        found = find_template()
        version_of_home = None if found is None else found.version
    elif wanted in (None, "auto"):
        version_of_home = None
    else:
        manifest = Path(wanted).resolve().with_name("manifest.json")
        version_of_home = hashlib.sha256(manifest.read_bytes()).hexdigest()[:16]
    home = "bare HOME" if version_of_home is None else f"home template {version_of_home}"
    return ", ".join([home, *(f"{name} {number}" for name, number in packages().items())])


def _container(options: Options) -> str:
    from osworld_gym.desktops.container.desktop import find_image
    from osworld_gym.desktops.container.engine import engine

    client = engine()
    try:
        return _image(client, find_image(client, options.get("image")))
    finally:
        client.close()


def _vm(options: Options) -> str:
    from osworld_gym.desktops.container.engine import engine
    from osworld_gym.desktops.vm.desktop import IMAGE, find_disk, require_image

    disk = file_sha256(Path(find_disk(options.get("disk"))))
    client = engine()
    try:
        image = str(options.get("image", IMAGE))
        require_image(client, image)
        return f"disk sha256 {disk}, {_image(client, image)}"
    finally:
        client.close()


def _image(client: Any, name: str) -> str:
    from osworld_gym.desktops.container.engine import engine_errors

    with engine_errors(FailureReason.never_ready, "looking for the image"):
        return f"image {name} {client.api.inspect_image(name)['Id']}"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file. A disk is tens of gigabytes: kept in the cache folder until its size or date changes."""
    status = path.stat()
    state = {"path": str(path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    kept = cache_folder("hashes") / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        if {name: found[name] for name in state} == state:
            return str(found["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not kept, or by another version: computed again
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_text(kept, json.dumps({**state, "sha256": digest}) + "\n")
    return digest


_IDENTITIES: dict[str, Callable[[Options], str]] = {
    "sim": _sim,
    "local": _local,
    "container": _container,
    "vm": _vm,
}
