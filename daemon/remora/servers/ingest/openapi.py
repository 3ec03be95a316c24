"""The OpenAPI document of the ingest API, as it is served."""

from __future__ import annotations

from importlib.resources import files

DOCUMENT = (files("remora.servers.ingest") / "openapi.json").read_bytes()
