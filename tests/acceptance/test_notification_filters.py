"""The same filters in a real radosgw and in remora."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest

from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.daemon import PATIENT, Sections, merged, running_daemon
from devkit.receivers.http_sink import HttpSink, http_sink
from remora.client import IngestClient

pytestmark = [pytest.mark.ceph, pytest.mark.full("the matcher's table of cases is at the gate")]

EVENTS = 200
EVERYTHING = "everything"

FOLDERS = ("2025/", "2026/", "2026/07/", "raw/", "", "a b/", "ä/")
NAMES = ("cat.jpg", "cat.JPG", "dog.png", "12", "x+y", "ü.jpg", "%41.jpg", "deep/er.txt")
CLASSES, PROJECTS = ("hot", "cold", "Hot"), ("remora", "other project", "a&b")
REGEXES = (
    "[a-z]+/.*",
    ".*[0-9]{2}",
    "2026/.*(cat|dog).*",
    ".*[.](jpg|png)",
    "..jpg",
    "cat",
    "(2025|2026)/[^/]+",
    ".+",
)
CHOICES = (
    (),
    ("s3:ObjectCreated:*",),
    ("s3:ObjectCreated:Put",),
    ("s3:ObjectCreated:Copy",),
    ("s3:ObjectRemoved:*",),
    ("s3:ObjectRemoved:Delete", "s3:ObjectCreated:Put"),
)


class Filtered(NamedTuple):
    """A notification: its names of events, its rules of keys, and what metadata and tags must have."""

    id: str
    events: tuple[str, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def as_xml(self, arn: str) -> str:
        """As radosgw takes it."""
        of = (("S3Key", self.keys), ("S3Metadata", self.metadata), ("S3Tags", self.tags))
        parts = "".join(f"<{kind}>{''.join(_rules(rules))}</{kind}>" for kind, rules in of if rules)
        names = "".join(f"<Event>{name}</Event>" for name in self.events)
        within = f"<Filter>{parts}</Filter>" if parts else ""
        return f"<TopicConfiguration><Id>{self.id}</Id><Topic>{arn}</Topic>{names}{within}</TopicConfiguration>"

    def as_toml(self, topic: str) -> str:
        """As `remora topic apply` takes it."""
        lines = [
            "[[notification]]",
            f'id = "{self.id}"',
            f'topics = ["{topic}"]',
            f"events = {json.dumps(self.events)}",
        ]
        lines.append("[notification.filter]")
        lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.keys]
        for kind, pairs in (("metadata", self.metadata), ("tags", self.tags)):
            if pairs:
                lines.append(f"{kind} = {{ {', '.join(f'{json.dumps(a)} = {json.dumps(b)}' for a, b in pairs)} }}")
        return "\n".join(lines)


def _rules(rules: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in rules:
        yield f"<FilterRule><Name>{escape(name)}</Name><Value>{escape(value)}</Value></FilterRule>"


def generated(chance: random.Random) -> list[Filtered]:
    """One notification that takes everything, and thirty with some rules each."""
    found = [Filtered(EVERYTHING)]
    for number in range(30):
        keys = []
        if chance.random() < 0.5:
            keys.append(("prefix", chance.choice([*FOLDERS[:4], "2026/c", "a b", "ä"])))
        if chance.random() < 0.4:
            keys.append(("suffix", chance.choice([".jpg", "g", "12", "ü.jpg", "y"])))
        if chance.random() < 0.3:
            keys.append(("regex", chance.choice(REGEXES)))
        metadata = [("x-amz-meta-class", chance.choice(CLASSES))] if chance.random() < 0.3 else []
        if metadata and chance.random() < 0.3:
            metadata.append(("x-amz-meta-who", "me"))
        tags = [("project", chance.choice(PROJECTS))] if chance.random() < 0.2 else []
        found.append(Filtered(f"n{number}", chance.choice(CHOICES), tuple(keys), tuple(metadata), tuple(tags)))
    return found


async def make_events(user: User, bucket: str, chance: random.Random) -> None:
    """Objects that are put, copied and removed, with and without metadata and tags.

    An object is overwritten with what it has: radosgw filters by the request, and its record then names what the former
    object had as well.
    """
    there: dict[str, dict[str, Any]] = {}
    for _ in range(EVENTS):
        key = chance.choice(FOLDERS) + chance.choice(NAMES)
        kind = chance.choice(("put", "put", "put", "copy", "remove"))
        if kind == "remove" and there:
            removed = chance.choice(list(there))
            del there[removed]
            await user.s3.delete_object(Bucket=bucket, Key=removed)
        elif kind == "copy" and there:
            source = {"Bucket": bucket, "Key": chance.choice(list(there))}
            await user.s3.copy_object(Bucket=bucket, Key=f"copied/{chance.randrange(EVENTS)}/{key}", CopySource=source)
        else:
            given = there.setdefault(key, _described(chance))
            await user.s3.put_object(Bucket=bucket, Key=key, Body=b"x", **given)


def _described(chance: random.Random) -> dict[str, Any]:
    metadata = {"class": chance.choice(CLASSES)} if chance.random() < 0.5 else {}
    metadata |= {"who": "me"} if chance.random() < 0.3 else {}
    tags = {"Tagging": f"project={quote(chance.choice(PROJECTS))}"} if chance.random() < 0.4 else {}
    return {"Metadata": metadata} | tags


def records_of(sink: HttpSink) -> list[dict[str, Any]]:
    """The different records that were posted."""
    return [record for body in dict.fromkeys(sink.bodies) for record in json.loads(body)["Records"]]


def copies(records: Iterable[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    """What each copy is of, and the notification that sent it."""
    return Counter(
        (one["eventTime"], one["eventName"], one["s3"]["object"]["key"], one["s3"]["configurationId"])
        for one in records
    )


@pytest.mark.parametrize("seed", [1, 2])
async def test_filters_take_what_radosgw_takes(zone: Zone, tmp_path: Path, seed: int) -> None:
    """Of 200 generated events, each of thirty notifications takes here what the same one takes in radosgw."""
    chance = random.Random(seed)
    wanted = generated(chance)
    own: Sections = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(tmp_path / "queues"), "files": 1},
        "ingest": {"listen": "127.0.0.1:0"},
        "ownership": {"discovery_interval": "500ms"},
    }
    async with (
        running_daemon(tmp_path, merged(PATIENT, own)) as daemon, zone.user() as user,
        http_sink() as theirs, http_sink() as ours, http_sink() as end,
    ):  # fmt: skip
        for each in (theirs, ours, end):
            await each.open()
        file = tmp_path / "topics.toml"
        topics = f'[topic.copies]\nendpoint = "{ours.url}"\n'
        file.write_text(topics + "\n".join(each.as_toml("copies") for each in wanted))
        applied = await daemon.command("topic", "apply", "-f", file)
        assert applied.code == 0, applied.err

        bucket, arn = fresh("filters"), await user.topic(fresh("theirs"), theirs.url)
        await user.s3.create_bucket(Bucket=bucket)
        await zone.notify(bucket, "".join(each.as_xml(arn) for each in wanted))
        await make_events(user, bucket, chance)
        await user.s3.put_object(Bucket=bucket, Key="last", Body=b"x")

        async def has_last() -> bool:
            return any(each["s3"]["object"]["key"] == "last" for each in records_of(theirs))

        await daemon.until(has_last, "the last object's event")
        queue = zone.queue(arn.rpartition(":")[2])

        async def is_empty() -> bool:
            return zone.is_empty(queue)

        await daemon.until(is_empty, "an empty queue of radosgw")
        posted = records_of(theirs)
        every = [each for each in posted if each["s3"]["configurationId"] == EVERYTHING]
        async with IngestClient((await daemon.status())["ingest"]) as client:
            for begin in range(0, len(every), 50):
                await client.publish_matching(every[begin : begin + 50])
        expected = copies(posted)
        await ours.until(expected.total())

        async def all_delivered() -> bool:
            return (await daemon.metric("remora_ledger_pending_entries", topic="copies")) == 0

        await daemon.until(all_delivered, "no entry that waits")
    found = copies(records_of(ours))
    assert len(every) > EVENTS / 2
    assert found == expected, f"too many {found - expected}, missing {expected - found}"
