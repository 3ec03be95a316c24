"""Commands on a topic that gets another number of shards: what they do, refuse and show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import write_config
from remora import app
from remora.cli import layouts
from remora.cli.apply_topics import TopicChange, carry_out, plan
from remora.cli.declared import Declared
from remora.cli.layouts import ReshardAsked
from remora.config import load
from remora.model.errors import RemoraError, TopicRefused
from remora.model.exits import Exit
from remora.model.ledger import Tally
from remora.model.shard import LockToken
from remora.model.topic import LayoutState, Topic, TopicLayout
from remora.ports.store import ShardStore
from support.commands import Run, config, remora
from support.stores import QUIET_S

__all__ = ["config", "remora"]

T = TypeVar("T")

ENDPOINT = "kafka://broker:9092"


@pytest.fixture
def run(remora: Run, config: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `remora ...` on an embedded store of this test alone, with a topic of two shards with an entry each."""
    write_config(config, {
        "store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "files": 1},
        "topics": {"default_shards": 2},
    })  # fmt: skip

    def command(*words: str | Path, stdin: bytes = b"") -> Any:
        return remora(*words, "-c", config, stdin=stdin)

    assert "topic t is made: 2 shards" in command("topic", "create", "t", "--endpoint", ENDPOINT).out.decode()
    in_store(config, fill)
    return command


def in_store(config: Path, work: Callable[[ShardStore], Awaitable[T]]) -> T:
    """Do something in the store that the commands look into."""

    async def run() -> T:
        async with app.store_of(load(config)) as store:
            return await work(store)

    return asyncio.run(run())


async def now(store: ShardStore) -> Topic:
    """The topic as the store has it."""
    found = await store.own_topics.find("t")
    assert found is not None
    return found


async def fill(store: ShardStore) -> None:
    """Commit an entry to each queue."""
    entry = raw_entry("k", 1)
    for shard in await store.catalog.shards():
        await store.two_phase.commit(shard, await store.two_phase.reserve(shard, 1, len(entry)), [entry])


async def deliver(store: ShardStore) -> None:
    """Remove all that owners of the queues are shown."""
    for shard in await store.catalog.shards():
        token = await store.locks.acquire(shard, "w", QUIET_S)
        assert isinstance(token, LockToken)
        page = await store.queue.read(token, b"", 100)
        if page.entries:
            await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))


def test_a_topic_gets_other_shards(run: Callable[..., Any]) -> None:
    """`topic set` says what comes first; `show` has both layouts, and a repeat finds the topic just so."""
    done = run("topic", "set", "t", "--shards", "3")
    assert done.code == Exit.OK, done.err
    said = "topic t has 3 shards now, of generation 1; 2 entries of the former ones come first\n"
    assert done.out.decode() == said

    shown = run("topic", "show", "t", "--json").json
    assert (shown["shards"], shown["ended"]) == (3, [])
    assert shown["queues"] == ["t", "t.1", "t@1", "t@1.1", "t@1.2"]
    assert shown["layouts"] == [
        {"generation": 0, "shards": 2, "state": "shut", "entries": 2},
        {"generation": 1, "shards": 3, "state": "open", "entries": 0},
    ]
    text = run("topic", "show", "t").out.decode()
    assert "generation 0 of 2 shards is shut with 2 entries, generation 1 of 3 shards is open with 0 entries" in text
    assert run("topic", "list", "--json").json[0]["shards"] == 3
    assert run("topic", "set", "t", "--shards", "3").out.decode() == "topic t is just so already\n"


def test_a_change_during_a_change(run: Callable[..., Any], config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with what is left, also when it has waited, which it says; nothing of the command is done then."""
    monkeypatch.setattr(layouts, "SILENT_S", 0.0)
    run("topic", "set", "t", "--shards", "3")

    for more in ([], ["--wait", "--timeout", "1s"]):
        done = run("topic", "set", "t", "--shards", "4", "--max-retries", "7", *more)
        assert done.code == Exit.FAILURE
        assert "generation 0 still holds 2 entries of 2 shards; wait until they are delivered" in done.err
        assert ("waiting until the former shards of t are delivered, for up to 1 s" in done.err) is bool(more)
    assert run("topic", "show", "t", "--json").json["max_retries"] == "default"

    in_store(config, deliver)
    done = run("topic", "set", "t", "--shards", "4", "--max-retries", "7", "--wait")
    assert done.out.decode() == "topic t has 4 shards now, of generation 2\n"
    shown = run("topic", "show", "t", "--json").json
    assert (shown["shards"], shown["max_retries"]) == (4, 7)


def test_a_drain_counts_the_queues_of_both_layouts(run: Callable[..., Any]) -> None:
    """A drain that runs out of time says in how many of all queues entries wait, the former ones among them."""
    run("topic", "set", "t", "--shards", "1")

    done = run("topic", "rm", "t", "--drain", "--timeout", "0")

    assert done.code == Exit.DRAIN_TIMEOUT
    assert "2 entries and 0 reservations wait in 2 of 3 queues" in done.err


def test_books_and_ends_of_queues_that_are_gone(run: Callable[..., Any], config: Path) -> None:
    """The ledger counts them with what they had, and `show` says where each ended, which its readers compare."""
    run("topic", "set", "t", "--shards", "1")
    in_store(config, deliver)
    run("topic", "set", "t", "--shards", "5")

    [ledger] = run("ledger", "t", "--json").json
    names = ("queue", "committed", "delivered", "pending")
    assert [tuple(each[name] for name in names) for each in ledger["shards"]][:3] == [
        ("t", 1, 1, 0), ("t.1", 1, 1, 0), ("t@1", 0, 0, 0),
    ]  # fmt: skip
    ended = run("topic", "show", "t", "--json").json["ended"]
    assert [(each["queue"], each["generation"], each["end"], each["committed"]) for each in ended] == [
        ("t", 0, "0/1", 1), ("t.1", 0, "0/1", 1), ("t@1", 1, "0/0", 0),
    ]  # fmt: skip
    assert all(each["incarnation"] for each in ended)


def test_a_file_changes_shards(run: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    """`apply` changes them where the file has a number, shows it in a dry run, and leaves them where it has none; it is
    refused while an earlier change is not delivered."""
    file = tmp_path / "topics.toml"
    file.write_text(f'[topic.t]\nendpoint = "{ENDPOINT}"\nshards = 3\n')
    assert "shards: 2 -> 3" in run("topic", "apply", "-f", file, "--dry-run").out.decode()
    assert run("topic", "apply", "-f", file).code == Exit.OK
    file.write_text(f'[topic.t]\nendpoint = "{ENDPOINT}"\nmax-retries = 7\n')
    assert run("topic", "apply", "-f", file).code == Exit.OK
    file.write_text(f'[topic.t]\nendpoint = "{ENDPOINT}"\nshards = 1\n[topic.u]\nendpoint = "{ENDPOINT}"\n')
    refused = run("topic", "apply", "-f", file)

    assert refused.code != Exit.OK
    assert "generation 0 still holds 2 entries" in refused.err
    assert run("topic", "show", "t", "--json").json["shards"] == 3
    assert run("topic", "show", "u", "--json").json["shards"] == 2


@pytest.mark.parametrize("words", [["--wait"], ["--shards", "3", "--timeout", "1s"]])
def test_options_that_belong_together(run: Callable[..., Any], words: list[str]) -> None:
    """--wait says nothing without --shards, nor --timeout without --wait."""
    done = run("topic", "set", "t", *words)

    assert done.code == Exit.USAGE
    assert "--wait is for --shards, and --timeout for --wait" in done.err


@pytest.mark.usefixtures("run")
def test_a_file_without_a_number_leaves_what_another_command_changes_meanwhile(config: Path) -> None:
    """A step that was planned before a topic got other shards changes what the file says, and not their number."""

    async def take(store: ShardStore) -> tuple[list[RemoraError], Topic]:
        topic = await now(store)
        wanted = Declared(replace(topic, shards=2, max_retries=7), None, [], keeps_shards=True)
        steps = plan([topic], [wanted], prune=False).steps
        await store.own_topics.reshard(topic, 3)
        return await carry_out(store, steps), await now(store)

    failures, topic = in_store(config, take)

    assert (failures, topic.shards, topic.max_retries) == ([], 3, 7)


@pytest.mark.usefixtures("run")
def test_a_change_that_was_cut_short_counts_as_made(config: Path) -> None:
    """A topic that is about to get other shards is not just so already for a file, nor a command, that wants those it
    has yet; a file that names no number leaves the change alone."""

    async def planned(store: ShardStore) -> list[TopicChange]:
        half = replace(await now(store), coming=TopicLayout(1, 11, LayoutState.PREPARING))
        await store.own_topics.reshard(half, 11)  # another process finishes it
        with pytest.raises(TopicRefused, match="generation 0 still holds 2 entries"):
            await layouts.resharded(store, half, ReshardAsked(2, False, None))
        wanted = [Declared(replace(half, shards=shards), None, [], keeps_shards=not shards) for shards in (2, 11, 0)]
        return [step for each in wanted for step in plan([half], [each], prune=False).steps]

    assert [list(each.lines()) for each in in_store(config, planned)] == [["~ t", "    shards: 11 -> 2"]]
