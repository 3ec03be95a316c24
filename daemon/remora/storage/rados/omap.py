"""Reads all keys of an object's omap, or all keys with their values, page by page."""

from __future__ import annotations

from remora.storage.librados import ReadOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.placement import Locator
from remora.storage.rados.refusals import MissingError

_PAGE = 1024


async def all_keys(connection: ClusterConnection, oid: str, locator: Locator) -> list[str]:
    """All keys in order; empty when there is no such object."""
    keys: list[str] = []
    more = True
    while more:
        operation = ReadOp().assert_exists()
        page = operation.omap_keys(keys[-1] if keys else "", _PAGE)
        try:
            await connection.run(operation, oid, f"reading the keys of {oid}", locator=locator)
        except MissingError:
            return keys
        keys += page.values
        more = page.more and bool(page.values)
    return keys


async def all_values(connection: ClusterConnection, oid: str, locator: Locator) -> dict[str, bytes]:
    """All keys with their values, in order; empty when there is no such object."""
    found: dict[str, bytes] = {}
    more = True
    while more:
        operation = ReadOp().assert_exists()
        page = operation.omap_page(next(reversed(found), ""), "", _PAGE)
        try:
            await connection.run(operation, oid, f"reading {oid}", locator=locator)
        except MissingError:
            return found
        found |= page.values
        more = page.more and bool(page.values)
    return found
