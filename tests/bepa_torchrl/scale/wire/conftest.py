"""Servers of the wire, and others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest

from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.scale.wire.client import WireClient
from bepa_torchrl.scale.wire.server import Action, Call, WireServer

TOKEN = b"a token of this test"


def echo(call: Call) -> Mapping[str, Any]:
    return {"fields": call.fields, "sizes": sorted(map(len, call.blobs.values()))}


@pytest.fixture
def serve() -> Iterator[Callable[..., WireServer]]:
    """Starts servers."""
    with ExitStack() as stack:

        def start(actions: Mapping[str, Action] | None = None, **options: Any) -> WireServer:
            defaults = {
                "address": ("127.0.0.1", 0),
                "token": TOKEN,
                "option": "cluster.listen",
                "instance": "1",
                "waiting": {},
                "threads": (4, 4),
            }
            return stack.enter_context(closing(WireServer(actions or {"echo": echo}, **{**defaults, **options})))

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[..., WireClient]]:
    """Makes clients."""
    with ExitStack() as stack:

        def make(url: str, *, token: bytes = TOKEN, ca: str | None = None, **options: Any) -> WireClient:
            defaults: dict[str, Any] = {"errors": {}, "ca_option": "--tls-ca"}
            return stack.enter_context(closing(WireClient(Access(url, token, ca), **{**defaults, **options})))

        yield make
