"""Why an event is in the journal once: commits to a real catalog, cut short and contended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from pyspark.sql import SparkSession

from remora.cli import group
from remora.model.exits import Exit, exit_code
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import COMMITTED, UNCOMMITTED, KafkaSource
from remora_pipeline.replay.pipeline.checkpoint import gone
from remora_pipeline.replay.pipeline.iceberg import land as landing
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, existing, made
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append, landed_in
from remora_pipeline.replay.pipeline.iceberg.known import tables_of_bucket
from remora_pipeline.replay.pipeline.iceberg.land import LakePlan
from remora_pipeline.replay.pipeline.iceberg.offsets import next_offsets
from remora_pipeline.replay.pipeline.iceberg.tables import FORMS
from remora_pipeline.replay.topic_identity import TopicIdentity
from replay.lakes import event, files, lake, rows, table

FIRST = LandedOffsets(0, {0: 2}, 2, 0)
SECOND = LandedOffsets(1, {0: 3}, 3, 0)


class Killed(BaseException):
    """What a process that dies at this point would not survive."""


def dying(step: int) -> Iterator[None]:
    """Raise at the n-th call."""
    for _ in range(step):
        yield
    raise Killed


def land_once(folder: Path) -> None:
    """What every run does: a batch, if it has not landed."""
    journal = table(folder, "events")
    if landed_in(journal) != FIRST:
        append(journal, files(journal, event(0), event(1)), LandedOffsets(), FIRST)


def test_a_batch_lands_once_wherever_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any file that is written and at any step of the catalog, and run again, each event is there once."""
    create, commit = PyArrowFile.create, SqlCatalog.commit_table
    for step in range(60):
        folder, is_killed = tmp_path / str(step), False
        folder.mkdir()
        table(folder, "events")
        death = dying(step)

        def counted(call: Any, death: Iterator[None] = death) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                next(death, None)
                answer = call(*args, **kwargs)
                next(death, None)
                return answer

            return wrapper

        with monkeypatch.context() as patch:
            patch.setattr(PyArrowFile, "create", counted(create))
            patch.setattr(SqlCatalog, "commit_table", counted(commit))
            try:
                land_once(folder)
            except Killed:
                is_killed = True
        land_once(folder)

        assert rows(table(folder, "events"), "offset") == [(0,), (1,)], step
        assert landed_in(table(folder, "events")) == FIRST
        if not is_killed:
            assert step > 6
            return
    raise AssertionError("it always dies")


def test_two_that_land_at_once(tmp_path: Path) -> None:
    """Of two processes that land the same batch one wins; the other is refused where it has other records, and adds
    nothing where it has the same."""
    one, other = table(tmp_path, "events"), table(tmp_path, "events")
    append(one, files(one, event(0), event(1)), LandedOffsets(), FIRST)

    with pytest.raises(ReplayRefused, match="another process lands into it"):
        append(other, files(other, event(0)), LandedOffsets(), LandedOffsets(0, {0: 1}, 1, 0))
    append(other, files(other, event(0), event(1)), LandedOffsets(), FIRST)

    assert rows(one, "offset") == [(0,), (1,)]


def test_a_commit_that_the_catalog_refuses_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table's head moves between look and commit, the batch lands on the new head if that has landed nothing,
    and is refused if it has; an answer that is lost lands nothing twice."""
    journal, other = table(tmp_path, "events"), table(tmp_path, "events")
    commit = SqlCatalog.commit_table
    meanwhile: list[Any] = []

    def interrupted(catalog: SqlCatalog, *args: Any) -> Any:
        if meanwhile:
            meanwhile.pop()()
        return commit(catalog, *args)

    monkeypatch.setattr(SqlCatalog, "commit_table", interrupted)

    def another_snapshot() -> None:
        with other.transaction() as transaction:
            transaction.update_snapshot().fast_append().commit()

    meanwhile.append(another_snapshot)
    append(journal, files(journal, event(0), event(1)), LandedOffsets(), FIRST)
    assert len(journal.metadata.snapshots) == 2

    meanwhile.append(lambda: append(other, files(other, event(2)), FIRST, SECOND))
    with pytest.raises(ReplayRefused, match="another process"):
        append(journal, files(journal, event(2)), FIRST, LandedOffsets(1, {0: 9}, 9, 0))
    assert rows(journal, "offset") == [(0,), (1,), (2,)]

    for number, lost in enumerate((CommitFailedException, CommitStateUnknownException), 3):

        def losing(catalog: SqlCatalog, *args: Any, lost: type[Exception] = lost) -> Any:
            commit(catalog, *args)
            raise lost("the answer is lost")

        monkeypatch.setattr(SqlCatalog, "commit_table", losing)
        before = landed_in(journal)
        append(journal, files(journal, event(number)), before, LandedOffsets(number, {0: number + 1}, number + 1, 0))
    assert rows(journal, "offset") == [(0,), (1,), (2,), (3,), (4,)]


def test_columns_that_an_older_remora_did_not_know_are_added(tmp_path: Path) -> None:
    """A journal without a column gets it, no file is written for that, and its old rows have null there."""
    schema, spec = FORMS["events"]
    older = Schema(*[each for each in schema.fields if each.name not in ("topic_sequence", "record_type")])
    address = lake(tmp_path)
    journal = made(address.connected(), address, "events", (older, spec), {})
    append(journal, files(journal, event(0)), LandedOffsets(), LandedOffsets(0, {0: 1}, 1, 0))
    before = sorted((tmp_path / "warehouse").rglob("*.parquet"))

    journal = table(tmp_path, "events")

    assert sorted((tmp_path / "warehouse").rglob("*.parquet")) == before
    append(journal, files(journal, event(1, topic_sequence="7")), LandedOffsets(0, {0: 1}, 1, 0), FIRST)
    assert rows(journal, "offset", "topic_sequence") == [(0, None), (1, "7")]


def test_what_is_no_place_for_tables_is_refused(tmp_path: Path) -> None:
    """An unknown catalog, one of folders, one that is not there and a table of another form are told in one line."""
    for uri, why in (
        ("gopher://x", "is no catalog"),
        (f"file://{tmp_path}", "a catalog of folders"),
        ("http://127.0.0.1:9/", "127.0.0.1"),
        (f"jdbc:sqlite:{tmp_path}/none/x.db", "unable to open database file"),
    ):
        with pytest.raises(ReplayError, match=why) as told:
            LakeAddress(uri, "remora").connected()
        assert "\n" not in str(told.value)
        assert uri in str(told.value)

    note = tmp_path / "note"
    note.write_bytes(b"x")
    for file, why in ((note, "the file is no database of SQLite"), (tmp_path / "none.db", "there is no such file")):
        with pytest.raises(ReplayRefused, match=why):
            LakeAddress(f"jdbc:sqlite:{file}", "remora").connected(makes=False)
    assert (note.read_bytes(), (tmp_path / "none.db").exists()) == (b"x", False)

    address = lake(tmp_path)
    catalog = address.connected()
    catalog.create_namespace("remora")
    catalog.create_table("remora.events", Schema(NestedField(1, "x", StringType())), partition_spec=PartitionSpec())
    with pytest.raises(ReplayRefused, match=r"remora\.events: is a table of another form"):
        existing(catalog, address, "events")


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("http://127.0.0.1:1/lake", "http://127.0.0.1:1/lake: the catalog cannot be reached: Connection refused"),
        ("http://me:word@127.0.0.1:1/?key=word", "http://127.0.0.1:1/: the catalog cannot be reached: "),
        ("http://me:pass/word@127.0.0.1:1/", "http://127.0.0.1:1/: the address is no URL"),
        ("http://none.invalid/", "http://none.invalid/: the catalog cannot be reached: "),
        ("gopher://me:password@x", "gopher://x: is no catalog"),
    ],
)
def test_an_unreachable_catalog_is_told_without_credentials(uri: str, told: str) -> None:
    """The line has the catalog's address, no user or password, and the cause in the operating system's words."""
    with pytest.raises(ReplayError) as caught:
        LakeAddress(uri, "remora").connected()

    said = str(caught.value)
    assert said.startswith(told)
    assert not any(word in said for word in ("me:", "pass", "word", "pool", "Pool", "retries", "HTTPConnection", "\n"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "Remote end closed connection without response"),
        (b"220 mail\r\n\r\n", "what answers there speaks no HTTP"),
    ],
)
def test_what_answers_and_is_no_catalog(answer: bytes, why: str) -> None:
    """A server that hangs up, and one of another protocol, are told in one line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(1 << 16)
                client.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        with pytest.raises(ReplayError, match=rf"^http://127\.0\.0\.1:{port}/: the catalog cannot be reached: {why}$"):
            LakeAddress(f"http://127.0.0.1:{port}/", "remora").connected()
        thread.join()


@pytest.mark.parametrize(
    "command",
    [
        ("land", "--bootstrap", "127.0.0.1:1", "--topic", "t", "--table", "iceberg"),
        ("land", "--bootstrap", "127.0.0.1:1", "--topic", "t", "--table", "iceberg", "--dry-run"),
        ("inventory", "--table", "iceberg"),
        ("inventory", "--table", "iceberg", "--dry-run"),
        ("maintain",),
    ],
    ids=" ".join,
)
def test_each_command_says_that_the_catalog_is_away(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A landing, an inventory and maintenance end with the code of a failure, and one line that names the catalog."""

    async def identified(_source: object) -> TopicIdentity:
        return TopicIdentity("id", "cluster")

    monkeypatch.setattr(landing, "identify", identified)  # a landing asks Kafka first

    done = CliRunner().invoke(group, ["pipeline", *command, "--catalog", "http://me:password@127.0.0.1:1/"])

    assert isinstance(done.exception, ReplayError)
    assert exit_code(done.exception) == Exit.FAILURE
    assert str(done.exception) == "http://127.0.0.1:1/: the catalog cannot be reached: Connection refused"
    assert "password" not in done.output


def test_a_comparison_says_that_the_catalog_is_away() -> None:
    """What `reconcile` asks of a catalog names it in the same line, before Spark is asked for anything."""
    with pytest.raises(ReplayError, match=r"^http://127\.0\.0\.1:1/: the catalog cannot be reached: Connection"):
        tables_of_bucket(cast("SparkSession", None), LakeAddress("http://127.0.0.1:1/", "remora"), "photos", "")


def the_next(folder: Path, ends: dict[str, int], monkeypatch: pytest.MonkeyPatch, **plan: Any) -> Any:
    """The batch that lands next, of one partition that ends there for readers of each isolation."""
    monkeypatch.setattr(landing, "spans", lambda source, _patience_s=0.0: {0: (0, ends[source.isolation])})
    tables = landing._Tables(table(folder, "events"), table(folder, "bad"))
    return landing._next(LakePlan(KafkaSource("b:9092", "t"), lake(folder), **plan), tables, None)


def test_a_topic_that_ends_before_what_has_landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has lost records: new ones take their offsets, and would never land, so that it is refused by name; not where
    what has landed lies behind a transaction that is open, and not with --skip-lost."""
    journal = table(tmp_path, "events")
    append(journal, files(journal, event(0), event(1)), LandedOffsets(), FIRST)
    cut, opened = {COMMITTED: 1, UNCOMMITTED: 1}, {COMMITTED: 1, UNCOMMITTED: 9}

    with pytest.raises(ReplayRefused, match="partition 0 ends with offset 1, and all before 2 has landed"):
        the_next(tmp_path, cut, monkeypatch)

    assert the_next(tmp_path, opened, monkeypatch) is None
    assert the_next(tmp_path, cut, monkeypatch, skip_lost=True) is None
    assert the_next(tmp_path, {COMMITTED: 3, UNCOMMITTED: 3}, monkeypatch).offsets == {0: (2, 3)}


def test_a_journal_that_was_rolled_back_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the journal was rolled back, its records land again: first those up to the end of the table of bad
    records, and then those behind it."""
    journal, aside = table(tmp_path, "events"), table(tmp_path, "bad")
    append(journal, files(journal, event(0), event(1)), LandedOffsets(), FIRST)
    append(aside, [], LandedOffsets(), LandedOffsets(5, {0: 4}, 3, 1))
    ends = {COMMITTED: 9, UNCOMMITTED: 9}

    again = the_next(tmp_path, ends, monkeypatch)
    append(journal, files(journal, event(2)), FIRST, LandedOffsets(1, {0: 4}, 3, 1))
    behind = the_next(tmp_path, ends, monkeypatch)

    assert (again.offsets, again.is_aside_there) == ({0: (2, 4)}, True)
    assert (behind.offsets, behind.is_aside_there) == ({0: (4, 9)}, False)


@pytest.mark.parametrize(
    ("landed", "first", "ends", "expected"),
    [
        ({}, {0: 0, 1: 4}, {0: 3, 1: 4}, {0: (0, 3)}),
        ({0: 3}, {0: 0, 1: 4}, {0: 3, 1: 6}, {1: (4, 6)}),
        ({0: 3, 1: 6}, {0: 0, 1: 4}, {0: 3, 1: 6}, {}),
        ({0: 0, 1: 0}, {0: 0, 1: 0}, {0: 90, 1: 10}, {0: (0, 9), 1: (0, 1)}),
        ({0: 0, 1: 0}, {0: 0, 1: 0}, {0: 900, 1: 1}, {0: (0, 9), 1: (0, 1)}),
        ({0: 2}, {0: 5}, {0: 7}, {0: (5, 7)}),
    ],
)
def test_the_next_batch(landed: Any, first: Any, ends: Any, expected: Any) -> None:
    """A batch goes on where the last one ended, takes its share of each partition, and begins new ones where Kafka
    does."""
    assert next_offsets(landed, first, ends, 10) == expected


def test_what_is_gone() -> None:
    """Records that Kafka has removed before they landed are told by partition; those that have landed are not."""
    assert gone({0: 3, 1: 6, 2: 1}, {0: 5, 1: 6, 3: 9}) == {0: (3, 5)}
