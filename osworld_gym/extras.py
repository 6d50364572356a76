"""The package's optional dependencies, and the error when they are not installed."""

from __future__ import annotations

from importlib.util import find_spec

#: extra of the package → the modules that it provides
EXTRAS: dict[str, tuple[str, ...]] = {
    "torchrl": ("torch", "tensordict", "torchrl"),
    "bepa": (
        "torch",
        "tensordict",
        "torchrl",
        "transformers",
        "hydra",
        "pydantic",
        "matplotlib",
        "rich",
        "tensorboard",
    ),
    "lora": ("peft",),
    "adam8bit": ("bitsandbytes",),
    "ray": ("ray",),
    "wire": ("httpx2", "msgpack", "starlette", "uvicorn"),
    "endpoint": ("openai",),
    "view": ("plotly", "yaml", "tokenizers", "safetensors"),
}


class MissingExtraError(ImportError):
    """A setting requires a package that is not installed; the message names the command that installs it."""


def missing_extra(extra: str, what: str) -> str:
    """One line that names the missing modules and the command that installs them; empty if none is missing.

    Args:
        extra: a key of :data:`EXTRAS`.
        what: what requires the extra, as the subject of the sentence.
    """
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if not missing:
        return ""
    return f"{what} requires {', '.join(missing)}, not installed; fix: pip install 'osworld-gym[{extra}]'"


def require_extra(extra: str, what: str) -> None:
    """Checks that an extra is installed, without importing it.

    Raises:
        MissingExtraError: a module is missing; the message is that of :func:`missing_extra`.
    """
    if problem := missing_extra(extra, what):
        raise MissingExtraError(problem)
