"""What the Kafka endpoint uses of aiokafka that aiokafka does not promise to keep."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection

import remora.endpoints.kafka
from devkit.clock import in_virtual_time
from remora.endpoints.kafka.client import KafkaClient

FILES = sorted(Path(remora.endpoints.kafka.__file__).parent.glob("*.py"))

OF_CONNECTIONS = {("client.py", "_loop"), ("client.py", "_protocol"), ("client.py", "_transport")}
"""The only private members of foreign objects; `client.py` says why."""

OF_THE_CLIENT = {"_conns", "_md_synchronizer", "_on_connection_closed", "_sync_task", "_topics"}
"""What `KafkaClient` uses of the class that it inherits."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_members(file: Path) -> Iterator[str]:
    """Private attributes of anything but the object itself."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if ast.unparse(node.value) not in ("self", "super()"):
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("getattr", "setattr", "vars") or not any(
                isinstance(each, ast.Constant) and isinstance(each.value, str) and is_private(each.value)
                for each in node.args
            ), f"{file.name}: {ast.unparse(node)}"


def imports(file: Path) -> Iterator[str]:
    """Everything that a file imports, by its whole name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_producer_of_aiokafka(file: Path) -> None:
    """No file of the endpoint imports aiokafka's producer or anything that only it consists of."""
    found = {each for each in imports(file) if each.startswith("aiokafka")}

    assert not {each for each in found if "roducer" in each.replace("InitProducerIdRequest", "")}, found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_private_members_of_others(file: Path) -> None:
    """No file reaches into another object, save for those members of connections that are named with their reason."""
    assert {(file.name, each) for each in foreign_members(file)} <= OF_CONNECTIONS


@in_virtual_time
async def test_private_members_of_the_client() -> None:
    """Of aiokafka's client only the members are used that are named, and each is there in the installed release."""
    theirs = {each for each in (*vars(AIOKafkaClient), *vars(AIOKafkaClient())) if is_private(each)}
    tree = ast.parse(inspect.getsource(KafkaClient))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)}
    overridden = {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}

    assert used & theirs == OF_THE_CLIENT, aiokafka.__version__
    assert overridden & theirs == {"_get_conn"}
    assert inspect.iscoroutinefunction(AIOKafkaClient._get_conn)


@in_virtual_time
async def test_private_members_of_connections() -> None:
    """A connection of the installed release has the members by which it connects and is cut."""
    assert {"_loop", "_protocol"} <= vars(AIOKafkaConnection("localhost", 1)).keys()
    assert "self._loop" in inspect.getsource(AIOKafkaConnection.connect)


def test_no_class_beside_the_client_inherits_from_aiokafkas_parts() -> None:
    """Only the client, and one request with its answer that aiokafka lacks, inherit from classes of aiokafka."""
    inheriting = {
        node.name
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).startswith(("AIOKafka", "Request", "Response"))
    }

    assert inheriting == {"KafkaClient", "OffsetFetchRequest_v7", "OffsetFetchResponse_v7", "StableOffsetFetch"}
