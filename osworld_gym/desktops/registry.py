"""The registry of providers: maps names such as ``sim`` to Desktop classes, which are imported on first use."""

from __future__ import annotations

import inspect
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import did_you_mean
from osworld_gym.extensions import Registry

#: name → class
PROVIDERS: Registry[type[Desktop]] = Registry(
    "osworld_gym.providers",
    {
        "sim": "osworld_gym.desktops.sim:SimDesktop",
        "recorded": "osworld_gym.desktops.recorded:RecordedDesktop",
        "local": "osworld_gym.desktops.local.desktop:LocalDesktop",
        "container": "osworld_gym.desktops.container.desktop:ContainerDesktop",
        "vm": "osworld_gym.desktops.vm.desktop:VmDesktop",
        "remote": "osworld_gym.desktops.remote.desktop:RemoteDesktop",
    },
    expects="a class that implements Desktop",
    accepts=lambda value: isinstance(value, type) and issubclass(value, Desktop),
)


def check_provider(provider: str) -> None:
    """Checks that there is a provider of that name; imports nothing.

    Raises:
        ValueError: there is none; the message lists the known ones. TypeError: no text.
    """
    if not isinstance(provider, str):
        raise TypeError(f"expected the name of a provider, such as 'sim', got {provider!r}")
    if provider not in PROVIDERS:
        known = ", ".join(sorted(PROVIDERS))
        raise ValueError(f"unknown provider {provider!r}{did_you_mean(provider, PROVIDERS)}; known: {known}")


def provider_class(provider: str) -> type[Desktop]:
    """The Desktop class of a provider.

    Raises:
        ValueError: unknown provider; the message lists the known ones. ExtensionError: its entry point is unusable.
    """
    check_provider(provider)
    return PROVIDERS[provider]


def make_desktop(provider: str, **options: Any) -> Desktop:
    """Creates one desktop; ``options`` are keyword arguments of the provider's class.

    Raises:
        ValueError: unknown provider or option, or one that the provider requires is missing, or its class lacks methods
            of Desktop; the message lists them.
        DesktopError: the desktop cannot be created on this machine.
    """
    kind = provider_class(provider)
    if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
        raise ValueError(f"provider {provider!r}: its class {kind.__name__} lacks {', '.join(lacking)} of Desktop")
    known = _options(kind)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(
            f"provider {provider!r} has no option {', '.join(unknown)}; it has: {', '.join(known) or 'none'}"
        )
    if lacking := [name for name in required_options(kind) if name not in options]:
        raise ValueError(f"provider {provider!r} requires {', '.join(f'{name}=...' for name in lacking)}")
    return kind(**options)


def required_options(kind: type[Desktop]) -> list[str]:
    """The options of a provider's class that have no default."""
    return [name for name, option in _options(kind).items() if option.default is option.empty]


def _options(kind: type[Desktop]) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: option for name, option in inspect.signature(kind).parameters.items() if option.kind in named}
