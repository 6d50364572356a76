"""Fixtures of the attacks by a replaced server."""

from replaced_server import desktop_fixture, server_fixture

__all__ = ["desktop_fixture", "server_fixture"]
