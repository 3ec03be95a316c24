"""The OpenAPI document of the ingest API, as it is served."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def document() -> bytes:
    """The document, which is read when it is first asked for."""
    return Path(__file__).with_name("openapi.json").read_bytes()
