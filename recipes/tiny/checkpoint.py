"""Writes a checkpoint with a manifest of its files' hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.testing.tiny_config import image_processor_config

MANIFEST = "manifest.json"


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint but its manifest, by name, sorted."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest that :func:`write_checkpoint` wrote."""
    return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))


def write_checkpoint(
    folder: Path,
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    notes: Mapping[str, Any],
    *,
    image_processor: Mapping[str, Any] | None = None,
) -> None:
    """Writes model, tokenizer and image processor, then the manifest with ``notes`` and the files' hashes.

    Files of the same name are replaced; the manifest is written last, so an interrupted write does not match it.

    Args:
        folder: is made if it is missing.
        model, tokenizer: what is written.
        notes: entries of the manifest.
        image_processor: ``preprocessor_config.json``; by default the tiny model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    config = json.dumps(image_processor or image_processor_config(), indent=2)
    (folder / "preprocessor_config.json").write_text(config + "\n", encoding="utf-8")
    write_notes(folder, notes)


def write_notes(folder: Path, notes: Mapping[str, Any]) -> None:
    """Writes the manifest: ``notes`` and the hashes of the folder's files."""
    text = json.dumps({**notes, "sha256": file_hashes(folder)}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
