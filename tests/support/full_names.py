"""A resolver that knows localhost by its full name, too."""

from __future__ import annotations

import socket
from typing import Any

import pytest


def known_by_its_full_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `localhost.` found where `localhost` is; the resolvers of some hosts do not know it."""
    find = socket.getaddrinfo

    def found(host: Any, *args: Any, **options: Any) -> Any:
        return find("localhost" if host == "localhost." else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found)
