"""Traffic shaping by real processes: a supervisor that deals credit out to two workers, and commands that change it."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import tomllib
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devkit.chaos.shaping import scopes
from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import PATIENT, Daemon, merged, running_daemon
from devkit.readers.consumer import read_until
from devkit.receivers.receiver import receiving
from remora.client import IngestClient
from remora.model.exits import Exit
from remora.servers.tokens import line_of, new_token
from support.embedded import drained, publish
from support.ingest import record

ROOT = Path(__file__).parents[2]
NOTHING = {"guaranteed": "0B", "burst": "1MB"}
SCOPE = {
    "name": "uplink",
    "of": "host",
    "enabled": True,
    "meters": dict.fromkeys(("max", "client_high", "client_normal", "client_low"), NOTHING),
}
PLENTY = {"guaranteed": "20MB", "burst": "10MB"}
SHARED = {
    "name": "topics",
    "of": "topic",
    "across": "cluster",
    "enabled": True,
    "meters": dict.fromkeys(("max", "client_high", "client_normal", "client_low"), PLENTY),
}
RATES = ("--rate", "20MB", "--burst", "10MB")
LIMIT = {"name": "few", "of": "topic", "match": ["*"], "events": 8, "burst_events": 20}


async def shaped(daemon: Daemon) -> bool:
    """Whether all shards of the topic wait for credit."""
    shards = (await daemon.status())["shards"]
    return len(shards) == 4 and {each["state"] for each in shards} == {"shaped"}


async def was_limited(daemon: Daemon) -> bool:
    """Whether a limit of ingest has held requests for a topic back."""
    return await daemon.metric("remora_ingest_limited_total", of="topic") > 0


async def is_changed(daemon: Daemon) -> bool:
    """Whether the file says something else than what is in force."""
    shown = await daemon.command("shaping", "show", "--json")
    assert shown.code == Exit.OK, shown.err
    changed: bool = shown.json["changed"]
    return changed


async def shares(daemon: Daemon, scope: str) -> dict[str, int]:
    """What this host has of the limits that all workers of the store share, by group."""
    shown = await daemon.command("shaping", "show", "--json")
    found = next(each for each in shown.json["scopes"] if each["name"] == scope)
    return {each["name"]: each["share"] for each in found["groups"]}


@pytest.mark.kafka
async def test_credit_of_a_host_is_changed_while_it_runs(kafka: Kafka, folder: Path) -> None:
    """Shards of a scope without credit wait, and the host is ready; a command lets them go; a reload brings the file
    back; a drain needs no credit; a limit of ingest holds a client back without refusing it anything; and two workers
    of the only host have all of a limit that the cluster shares."""
    topic = await create_topic(kafka.address, f"shaped-{uuid.uuid4().hex[:10]}")
    sections: dict[str, dict[str, object]] = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "ownership": {"discovery_interval": "500ms"},
        "shaping": {"scope": [SCOPE, SHARED]},
        "ingest": {"limit": [LIMIT]},
    }
    async with running_daemon(folder, merged(PATIENT, sections)) as daemon:
        endpoint = f"kafka://{kafka.address}"
        done = await daemon.command("topic", "create", topic, "--endpoint", endpoint, "--shards", "4")
        assert done.code == Exit.OK, done.err
        async with IngestClient(daemon.ingest) as client:
            for request in range(5):
                taken = await client.publish(topic, [record(f"{request}-{i}") for i in range(20)])
                assert (taken.events, taken.repeated) == (20, False)
        await daemon.until(lambda: was_limited(daemon), "requests that waited")
        await daemon.until(lambda: shaped(daemon), "shards that wait for credit")
        assert await daemon.metric("remora_delivered_entries_total") == 0
        for path in ("/-/ready", "/-/ready/delivery"):
            await daemon.until(partial(daemon.is_ready, path), path)
        assert "waits for client_low of uplink" in (await daemon.command("status")).out.decode()

        done = await daemon.command("shaping", "set", "--scope", "UPLINK", "--priority", "ALL", *RATES)
        assert done.code == Exit.OK, done.err
        assert "shaping::uplink::client_low::rate 0B => 20MB" in done.out.decode().splitlines()
        assert await is_changed(daemon)
        assert await daemon.metric("remora_shaping_overridden", scope="uplink") == 1
        changed = f"value=uplink::client_low::rate old=0B new=20MB by=command uid={os.getuid()} pid="
        assert changed in daemon.logged()
        found = await read_until(kafka.address, topic, 100)
        assert len({each.value for each in found}) == len(found) == 100
        assert await daemon.metric("remora_shaping_granted_bytes_total", scope="uplink") > 0

        async def is_shared() -> bool:
            return await shares(daemon, "topics") == {f"topics/{topic}": 80_000_000}

        await daemon.until(is_shared, "shares of all workers")
        shown = (await daemon.command("shaping", "show", "--scope", "topics")).out.decode().splitlines()
        assert f"  topics/{topic}: this host's share is 80MB per second" in shown
        flows = (await daemon.command("shaping", "stats", "--scope", "uplink", "--json")).json["flows"]
        assert sum(each["waited"] for each in flows) > 0
        assert sum(each["granted_bytes"] for each in flows) > 0
        summary = (await daemon.command("shaping", "stats", "--summary")).out.decode()
        assert [line.split()[:2] for line in summary.splitlines()[2:]] == [["topics", "all"], ["uplink", "all"]]
        daemon.send(signal.SIGHUP)
        await daemon.until(lambda: unchanged(daemon), "what the file says")
        assert await daemon.metric("remora_shaping_overridden") == 0
        assert "value=uplink::client_low::rate old=20MB new=0B by=reload\n" in daemon.logged()
        done = await daemon.command("shaping", "set", "--scope", "uplnk", "--disable")
        assert (done.code, 'did you mean "uplink"?' in done.err) == (Exit.CONFIG, True), done.err
        done = await daemon.command("shaping", "show", "--scope", "uplnk")
        assert (done.code, 'did you mean "uplink"?' in done.err) == (Exit.CONFIG, True), done.err
        assert "config_remark" in daemon.logged()
        assert await daemon.stop() == Exit.OK


@pytest.mark.guarantee("no-loss", "order-per-object")
async def test_shaping_that_changes_under_load_loses_nothing(folder: Path) -> None:
    """While limits of all kinds come, change and go by reloads, events come in; each of them arrives once, in order per
    key, and the ledger agrees."""
    chance, events, keys = random.Random(4), 0, 20
    given: dict[str, dict[str, object]] = {
        "supervisor": {"workers": 2},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "http": {"request_timeout": "4m"},
        "delivery": {"drain_timeout": "5m"},  # of which a request may take a part
    }
    sections = merged(PATIENT, given)
    async with receiving() as receiver, running_daemon(folder, sections) as daemon:
        done = await daemon.command("topic", "create", "hooks", "--endpoint", f"{receiver.url}/in", "--shards", "4")
        assert done.code == Exit.OK, done.err
        for _ in range(8):
            wanted = scopes(chance)
            daemon.rewrite(shaping={"scope": wanted})
            daemon.send(signal.SIGHUP)
            await publish(folder, "hooks", range(events, events + 200), keys=keys)
            events += 200
            names = [each["name"] for each in wanted]

            async def is_shaped(names: list[object] = names) -> bool:
                shown = await daemon.command("shaping", "show", "--json")
                assert shown.code == Exit.OK, shown.err
                return [each["name"] for each in shown.json["scopes"]] == names

            await daemon.until(is_shaped, f"scopes {names}")
        daemon.rewrite(shaping={"scope": []})
        daemon.send(signal.SIGHUP)
        await drained(daemon, "hooks")
        assert await daemon.metric("remora_shaping_granted_bytes_total") > 0

    numbers = [
        int(json.loads(each.body)["Records"][0]["responseElements"]["x-amz-request-id"].removeprefix("req."))
        for each in receiver.taken
    ]
    assert sorted(numbers) == list(range(events))
    for key in range(keys):
        of_key = [each for each in numbers if each % keys == key]
        assert of_key == sorted(of_key)


@pytest.mark.full("two starts of processes for what unit tests guard part by part")
async def test_a_topic_is_shaped_by_the_tokens_that_may_send_to_it(folder: Path) -> None:
    """A topic of a bulk sender waits in its class until another token may send to it, without a reload."""
    none, plenty = {"guaranteed": "0B", "burst": "1MB"}, PLENTY
    meters = dict.fromkeys(("max", "client_high", "client_normal", "client_low"), plenty) | {"background": none}
    file, token = folder / "tokens", new_token()
    file.write_text(line_of("bulk", token, "*") + "\n")
    file.chmod(0o600)
    sections: dict[str, dict[str, object]] = {
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"tokens": str(file)},
        "shaping": {
            "scope": [SCOPE | {"meters": meters}],
            "principal": [{"name": "bulk", "of": "token", "match": ["bulk"], "max_class": "replay"}],
        },
    }
    async with receiving() as receiver, running_daemon(folder, merged(PATIENT, sections)) as daemon:
        done = await daemon.command("topic", "create", "hooks", "--endpoint", f"{receiver.url}/in", "--shards", "4")
        assert done.code == Exit.OK, done.err
        async with IngestClient(daemon.ingest, token=token) as client:
            await client.publish("hooks", [record(f"k{number}") for number in range(50)])
        await daemon.until(lambda: shaped(daemon), "shards that wait for credit")
        assert "waits for background of uplink" in (await daemon.command("status")).out.decode()
        assert receiver.taken == []

        with file.open("a") as more:
            more.write(line_of("live", new_token(), "hooks") + "\n")
        await drained(daemon, "hooks")
        assert len(receiver.taken) == 50


async def test_a_destination_is_shaped_by_the_network_of_its_name(folder: Path) -> None:
    """A receiver that is named `localhost` lies in the networks of the loopback: its topic waits there until that scope
    has credit, and its reason and `shaping show` say by which address."""
    site = SCOPE | {"name": "site", "of": "destination", "match": ["127.0.0.0/8", "::1/128"], "each": False}
    sections: dict[str, dict[str, object]] = {
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "shaping": {"scope": [site]},
    }
    async with receiving() as receiver, running_daemon(folder, merged(PATIENT, sections)) as daemon:
        url = receiver.url.replace("127.0.0.1", "localhost")
        assert "//localhost:" in url
        done = await daemon.command("topic", "create", "first", "--endpoint", f"{url}/in", "--shards", "1")
        assert done.code == Exit.OK, done.err
        await publish(folder, "first", range(10), keys=1)

        async def is_known() -> bool:
            shown = (await daemon.command("shaping", "show", "--json")).json["scopes"][0]["hosts"]
            return [(each["name"], each["inside"]) for each in shown] == [("localhost", True)]

        await daemon.until(is_known, "the addresses of localhost")
        assert "  localhost is 127.0.0.1" in (await daemon.command("shaping", "show")).out.decode()
        await publish(folder, "first", range(10, 20), keys=1)

        async def waits() -> bool:
            return " of site (localhost is " in (await daemon.command("status")).out.decode()

        await daemon.until(waits, "a shard that waits in its network")
        assert len(receiver.taken) <= 10

        done = await daemon.command("shaping", "set", "--scope", "site", "--priority", "ALL", *RATES)
        assert done.code == Exit.OK, done.err
        await drained(daemon, "first")
        assert len(receiver.taken) == 20


async def test_the_worked_examples_run_as_written(folder: Path) -> None:
    """A daemon with the first configuration of the page on shaping takes each command of its worked examples."""
    page = (ROOT / "docs/shaping.md").read_text()
    shaping = tomllib.loads(re.findall(r"(?s)```toml\n(.*?)```", page)[0])["shaping"]
    examples = page.partition("## Worked examples")[2].partition("\n## ")[0]
    commands = [line for block in re.findall(r"(?s)```sh\n(.*?)```", examples) for line in block.splitlines()]
    sections: dict[str, dict[str, object]] = {
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "shaping": shaping,
    }
    said: dict[str, list[str]] = {}
    async with running_daemon(folder, sections) as daemon:
        for line in commands:
            program, *words = shlex.split(line)
            done = await daemon.command(*words)
            assert (program, done.code) == ("remora", Exit.OK), done.err
            said.setdefault(words[1], []).append(done.out.decode())
        assert not await is_changed(daemon)

    assert len(commands) == 4
    assert said["set"] == [
        "shaping::uplink::priority_queue::rate 20MB => 5MB\nshaping::uplink::priority_queue::max 60MB => 30MB\n"
    ]
    assert ["changed by command" in each for each in said["show"]] == [False, True]
    assert all("uplink of host, enabled" in each and "acme of tenant" not in each for each in said["show"])


async def test_a_change_outlives_a_refused_file_and_no_other(folder: Path) -> None:
    """What a command has changed stays in force while the file is refused, which a metric says, and ends with the next
    reload, also where the file says what it said."""
    sections: dict[str, dict[str, object]] = {
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "shaping": {"scope": [SCOPE]},
    }
    async with running_daemon(folder, sections) as daemon:

        async def refused() -> bool:
            return await daemon.metric("remora_config_last_reload_successful") == 0

        async def shown() -> dict[str, Any]:
            """What the daemon says; the command would refuse the file as well."""
            answer: dict[str, Any] = json.loads((await daemon.get("/-/shaping"))[1])
            return answer

        async def is_of_the_file() -> bool:
            return not (await shown())["changed"]

        done = await daemon.command("shaping", "set", "--scope", "ALL", "--priority", "max", "--rate", "5MB")
        assert done.out.decode() == "shaping::uplink::max::rate 0B => 5MB\n"
        daemon.rewrite(shaping={"scope": [SCOPE, SCOPE]})
        daemon.send(signal.SIGHUP)
        await daemon.until(refused, "a file that is refused")
        meters = {each["bucket"]: each["guaranteed"] for each in (await shown())["scopes"][0]["meters"]}
        assert meters["max"] == 5_000_000
        assert not await is_of_the_file()

        daemon.rewrite(shaping={"scope": [SCOPE]})
        daemon.send(signal.SIGHUP)
        await daemon.until(is_of_the_file, "what the file says")
        assert not await refused()


async def unchanged(daemon: Daemon) -> bool:
    """Whether what the file says is in force."""
    return not await is_changed(daemon)
