"""The ingest server's tests run on both kinds of loop: their transports differ in what they do at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import uvloop


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The daemon's own loop, and the one that most tests have."""
    ours: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name == "test_ingest_distribution.py":  # of what is stored, whatever the transport is
        return ours
    return ours | {"asyncio": asyncio.new_event_loop}
