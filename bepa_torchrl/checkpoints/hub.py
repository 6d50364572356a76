"""Checkpoints that are repositories of the Hugging Face hub: in the local cache, or why not. Imports no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

OFFLINE = "offline mode is on (HF_HUB_OFFLINE)"
_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"


def is_repository(name: str) -> bool:
    """Whether a checkpoint's name is ``OWNER/NAME`` of a repository, and not a folder of this machine."""
    return name.count("/") == 1 and not name.startswith((".", "~", os.sep)) and not Path(name).is_dir()


def is_offline() -> bool:
    """Whether offline mode is on: nothing is downloaded."""
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode())


def is_cached(name: str) -> bool:
    """Whether the configuration and all weights of a repository are in the local cache."""
    config = _cached(name, _CONFIG)
    if config is None:
        return False
    index = config.parent / _INDEX
    if not index.is_file():
        return any(config.parent.glob("*.safetensors"))
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((config.parent / str(file)).is_file() for file in files)


def not_available(name: str) -> str | None:
    """Why a repository cannot be had, with the fix; None: its configuration is in the cache, or has been downloaded."""
    from huggingface_hub import errors, hf_hub_download

    if _cached(name, _CONFIG) is not None:
        return None
    try:
        hf_hub_download(name, _CONFIG)
    except errors.LocalEntryNotFoundError as error:
        return not_cached(name, OFFLINE if is_offline() else _unreachable(error))
    except errors.GatedRepoError:
        page = f"https://huggingface.co/{name}"
        return f"the hub gives it to accepted accounts only; fix: ask for access at {page}, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        return (
            "no such folder, and the hub has no such repository, or it is a private one; fix: correct the name, name "
            "a folder, or `hf auth login`"
        )
    except errors.HFValidationError as error:
        return f"no such folder, and no name of a hub repository ({error}); fix: name a folder, or OWNER/NAME"
    except errors.EntryNotFoundError:
        return f"the hub's repository has no {_CONFIG}; expected a model that transformers can load; fix: name another"
    return None


def not_cached(name: str, why: str) -> str:
    """The message about a repository that is not in the cache and cannot be downloaded, for the reason ``why``."""
    return (
        f"the hub repository of this name is not in the local Hugging Face cache, and {why}; "
        f"fix: `hf download {name}` while the hub can be reached, or name a folder (there is none of this name)"
    )


def _unreachable(error: Exception) -> str:
    return f"the hub could not be reached ({error.__cause__ or type(error).__name__})"


def _cached(name: str, file: str) -> Path | None:
    """A file of a repository in the local cache; None: it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, file)
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None
