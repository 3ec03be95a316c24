"""Addresses of catalogs: what is refused, which package is missing, and what answers that is no catalog."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType

import pytest
from click.testing import CliRunner

from remora.cli import group
from remora.model.exits import Exit, exit_code
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.pipeline.iceberg.catalog import FORMS, LakeAddress, existing, made
from remora_pipeline.replay.pipeline.iceberg.tables import FORMS as TABLES
from replay.lakes import lake

POSTGRESQL = "jdbc:postgresql://me:word@none.invalid/lake"
NO_DRIVER = "jdbc:postgresql://none.invalid/lake: psycopg2 is missing; install it with: pip install psycopg2-binary"


@contextmanager
def answering(
    answers: Mapping[str, tuple[int, str]], headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """A server of HTTP with an answer for each end of a path, and 404 without a text for all others; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            status, text = next((told for end, told in answers.items() if path.endswith(end)), (404, ""))
            body = text.encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/lake"
        finally:
            server.shutdown()
            thread.join()


def said(address: LakeAddress) -> str:
    """What is said of an address that cannot be used."""
    with pytest.raises(ReplayError) as caught:
        address.connected()
    return str(caught.value)


# ------------------------------------------------------------------------------------------ missing packages


@pytest.mark.parametrize("command", [("inventory", "--table", "iceberg"), ("maintain",)], ids=" ".join)
def test_a_driver_that_is_missing_is_named(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog in PostgreSQL without psycopg2 ends a command with the code of a failure, and one line that says what
    to install."""
    monkeypatch.setitem(sys.modules, "psycopg2", None)

    done = CliRunner().invoke(group, ["pipeline", *command, "--catalog", POSTGRESQL])

    assert isinstance(done.exception, ReplayError)
    assert (str(done.exception), exit_code(done.exception)) == (NO_DRIVER, Exit.FAILURE)


def test_a_package_that_a_setting_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signing for Amazon's catalogs without boto3 says what to install."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    signing = LakeAddress("http://127.0.0.1:1/", "remora", None, {"rest.sigv4-enabled": "true"})

    assert said(signing) == "http://127.0.0.1:1/: boto3 is missing; install it with: pip install boto3"


def test_a_driver_that_is_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where a package is there and cannot be loaded, the line says why."""
    (tmp_path / "psycopg2.py").write_text("raise ImportError('libpq.so.5: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "psycopg2", raising=False)

    assert said(LakeAddress(POSTGRESQL, "remora")).endswith("/lake: libpq.so.5: cannot open shared object file")


# ------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    "uri",
    [
        "", "jdbc:", "jdbc:postgresql:lake", "jdbc:mysql://h/lake", "jdbc:oracle:thin:@h", "postgresql://h/lake",
        "sqlite:///lake.db", "thrift://h:9083", "glue://", "dynamodb://", "bigquery://", "HTTP://h/", " https://h/",
    ],
)  # fmt: skip
def test_other_catalogs_are_refused(uri: str) -> None:
    """Each kind that pyiceberg or SQLAlchemy may know and remora does not is told with those that there are."""
    assert said(LakeAddress(uri, "remora")) == f"{uri}: is no catalog; it must be {FORMS}"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("jdbc:postgresql://me:word@h:port/lake", "jdbc:postgresql://h:port/lake: the address is no URL"),
        ("jdbc:sqlite:", "jdbc:sqlite:: names no file, whose name is without a question mark"),
        ("jdbc:sqlite::memory:", "jdbc:sqlite::memory:: names no file, whose name is without a question mark"),
        ("jdbc:sqlite:lake.db?mode=ro", "jdbc:sqlite:lake.db?mode=ro: names no file, whose name is without a question"),
        ("jdbc:sqlite:/", "jdbc:sqlite:/: is a folder, and must be a file"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(uri: str, why: str) -> None:
    """One that is no URL is told without its password, and one that names no file makes none."""
    told = said(LakeAddress(uri, "remora"))

    assert told.startswith(why)
    assert "word" not in told


@pytest.mark.parametrize("group_of", ["auth", "ssl"])
def test_settings_that_are_groups_are_refused(group_of: str) -> None:
    """A file of one setting a line cannot say them."""
    address = LakeAddress("http://127.0.0.1:1/", "remora", None, {group_of: "x"})

    assert said(address) == f"{group_of}: is a group of settings, which a file of single ones cannot have"


def test_a_catalog_that_does_not_know_where_tables_lie(tmp_path: Path) -> None:
    """A database's catalog without a warehouse names the option."""
    address = LakeAddress(lake(tmp_path).uri, "remora")

    with pytest.raises(ReplayError, match=r"the catalog does not know where tables lie: say it with --warehouse$"):
        made(address.connected(), address, "events", TABLES["events"], {})


@pytest.mark.parametrize("name", ["a#b", "a?b"])
def test_a_warehouse_whose_files_would_lose_their_names_is_refused(tmp_path: Path, name: str) -> None:
    """All files of its tables would be one file, named by what stands before the mark."""
    address = replace(lake(tmp_path), warehouse=f"file://{tmp_path}/{name}")

    assert said(address) == f"file://{tmp_path}/{name}: a warehouse is named without '#' and '?'"


@pytest.mark.parametrize("namespace", ["", "a..b", ".a", "a."])
def test_a_namespace_without_a_name_is_refused(namespace: str) -> None:
    """Each part of it has a name."""
    done = CliRunner().invoke(group, ["pipeline", "maintain", "--catalog", "http://h/", "--namespace", namespace])

    assert done.exit_code == Exit.USAGE
    assert "names that dots join" in done.output


# ------------------------------------------------------------------------------------------ what answers there

NO_JSON, OTHER_JSON = "it is no JSON", "it is JSON of another form"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<!DOCTYPE html>\n<html><body>hello</body></html>", NO_JSON),
        ("", NO_JSON),
        ("{", NO_JSON),
        ("[]", OTHER_JSON),
        ('"lake"', OTHER_JSON),
        ('{"defaults": 7}', OTHER_JSON),
        ('{"defaults": null}', OTHER_JSON),
        ('{"overrides": null}', OTHER_JSON),
        ('{"endpoints": ["lake"]}', OTHER_JSON),
    ],
)
def test_a_server_that_is_no_catalog_is_told(text: str, why: str) -> None:
    """One that answers with success and something else is told in one line with its address."""
    with answering({"/v1/config": (200, text)}) as address:
        assert said(LakeAddress(address, "remora")) == f"{address}: the answer is not a REST catalog's: {why}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html></html>", NO_JSON),
        ("", NO_JSON),
        ("{}", OTHER_JSON),
        ('{"metadata": {"format-version": 2}}', OTHER_JSON),
    ],
)
def test_a_table_that_is_none_is_told(text: str, why: str) -> None:
    """A server whose settings may be a catalog's, and whose tables are not, is told as well."""
    with answering({"/v1/config": (200, "{}"), "/tables/events": (200, text)}) as address:
        wanted = LakeAddress(address, "remora")
        catalog = wanted.connected()
        with pytest.raises(ReplayError) as caught:
            existing(catalog, wanted, "events")

    assert str(caught.value) == f"{address}: the answer is not a REST catalog's: {why}"


@pytest.mark.parametrize("status", [404, 502])
def test_a_page_that_says_no_is_told_by_its_status(status: int) -> None:
    """A server that refuses with a page of its own, or a proxy in front of a catalog that is away."""
    with answering({"/v1/config": (status, "<html>\n<h1>no</h1></html>")}) as address:
        why = f"the answer is not a REST catalog's: it has status {status}"
        assert said(LakeAddress(address, "remora")) == f"{address}: {why}"


def test_what_a_catalog_cannot_do_is_told() -> None:
    """A catalog that does not serve tables says so in one line."""
    with answering({"/v1/config": (200, '{"endpoints": ["GET /v1/{prefix}/namespaces"]}')}) as address:
        wanted = LakeAddress(address, "remora")
        catalog = wanted.connected()
        with pytest.raises(ReplayError, match=r"^http://127\.0\.0\.1:[0-9]+/lake: Server does not support") as caught:
            existing(catalog, wanted, "events")

    assert not isinstance(caught.value, ReplayRefused)
    assert "\n" not in str(caught.value)
