"""`remora notification`, `[[notification]]` in a file of topics, and topics that notifications name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devkit.processes.daemon import Ended, write_config
from remora.cli import own_topic
from remora.model.exits import Exit
from remora.model.notification import Notification
from remora.model.topic import Topic
from remora.ports.store import ShardStore
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

TOPICS = """
[topic.thumbs]
endpoint = "kafka://broker"
[topic.audit]
endpoint = "kafka://broker"
"""

THUMBNAILS = """
[[notification]]
id = "thumbnails"
topics = ["thumbs", "audit"]
buckets = ["photos", "raw-*"]
events = ["s3:ObjectCreated:*"]
[notification.filter]
prefix = "2026/"
suffix = ".jpg"
regex = "[a-z0-9/]+\\\\.jpg"
size_min = "1B"
size_max = "1GB"
metadata = { "x-amz-meta-class" = "hot" }
tags = { project = "remora" }
"""


class Commands:
    """Runs commands on an embedded store of a test's own."""

    def __init__(self, remora: Run, config: Path) -> None:
        self._remora, self._config = remora, config
        self.file = config.parent / "topics.toml"

    def __call__(self, *args: str) -> Ended:
        return self._remora(*args, "-c", self._config)

    def apply(self, text: str, *options: str) -> Ended:
        self.file.write_text(text)
        return self("topic", "apply", "-f", str(self.file), *options)

    def notifications(self) -> list[dict[str, object]]:
        """All of them, as `list --json` has them."""
        found: list[dict[str, object]] = json.loads(self("notification", "list", "--json").out)
        return found


@pytest.fixture
def run(remora: Run, config: Path, tmp_path: Path) -> Commands:
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "files": 2}})
    return Commands(remora, config)


def test_applied_changed_and_pruned(run: Commands) -> None:
    """A file makes notifications, changes those that differ, keeps others, and removes them with --prune."""
    made = run.apply(TOPICS + THUMBNAILS)
    again = run.apply(TOPICS + THUMBNAILS, "--dry-run")
    other = run.apply(
        TOPICS + THUMBNAILS.replace('size_min = "1B"\n', "") + '[[notification]]\nid="b"\ntopics=["audit"]'
    )
    kept = run.apply(TOPICS + '[[notification]]\nid = "b"\ntopics = ["audit"]')
    dry = run.apply(TOPICS, "--prune", "--dry-run")
    pruned = run.apply(TOPICS + '[[notification]]\nid = "b"\ntopics = ["audit"]', "--prune")

    assert (made.code, again.code, other.code, kept.code, pruned.code) == (0, 0, 0, 0, 0), made.err
    assert "+ notification thumbnails\n    topics: thumbs, audit\n" in made.out.decode()
    assert "~ notification thumbnails\n    filter.size_min: 1B -> none\n+ notification b\n" in other.out.decode()
    assert "remark: notifications thumbnails and b overlap: an event that matches both is sent twice to audit" in (
        other.out.decode()
    )
    assert "notification thumbnails: not in the file, stays" in kept.out.decode()
    assert dry.code == Exit.DIFFERS
    assert "- notification b\n" in dry.out.decode()
    assert [each["id"] for each in run.notifications()] == ["b"]


def test_what_is_wrong_in_a_file_is_named(run: Commands) -> None:
    """Each refusal names file, line, notification and rule, all of them at once, and nothing is changed."""
    refused = run.apply(
        TOPICS
        + THUMBNAILS.replace("raw-*", "raw-[a").replace("[a-z0-9/]+", "[a-").replace('"1B"', '"-1B"')
        + '[[notification]]\nid = "second"\ntopics = []\nevents = ["s3:ObjectCreated:Putt"]\nsufix = "x"\n'
        + '[[notification]]\ntopics = 3\n[notification.filter]\nregex = "(a)\\\\1"\nsize_min = 4\ntags = { a = 1 }\n'
        + '[[notification]]\nid = "d"\ntopics = ["audit"]\n[[notification]]\nid = "d"\ntopics = ["audit"]\n'
    )
    wrong = run.apply(
        TOPICS + THUMBNAILS.replace("raw-*", "raw-[a").replace("[a-z0-9/]+", "[a-")
        + '[[notification]]\nid = "second"\ntopics = []\nevents = ["s3:ObjectCreated:Putt"]\n'
        + '[[notification]]\nid = "third"\ntopics = ["audit"]\n[notification.filter]\nregex = "(a)\\\\1"\n'
        + '[[notification]]\nid = "second"\ntopics = ["audit"]\n'
    )  # fmt: skip
    unknown = run.apply(TOPICS + THUMBNAILS.replace('"audit"', '"adit"'))

    assert (refused.code, wrong.code, unknown.code) == (Exit.CONFIG, Exit.CONFIG, Exit.CONFIG)
    for line in (
        'notification thumbnails: filter.size_min: a size is not negative, as "-1B" is (line 16)',
        "notification second: sufix: there is no such rule (line 24)",
        'notification number 3: topics: expected a list of texts such as ["a", "b"], not a number (line 26)',
        'notification number 3: filter.size_min: expected a size such as "1MB", not a number (line 29)',
        "notification d: id: there is a notification d above (line 35)",
    ):
        assert line in refused.err, refused.err
    for line in (
        "notification thumbnails: buckets: 'raw-[a' has '[': only * stands for anything in a bucket's name (line 10)",
        "notification thumbnails: filter.regex: RE2 does not take it: invalid character class range: a-\\. (line 15)",
        "notification second: topics: expected one topic or more (line 22)",
        "notification second: events: there is no event 's3:ObjectCreated:Putt'; did you mean s3:ObjectCreated:Put?",
        "notification third: filter.regex: RE2 does not take it: invalid escape sequence: \\1 (line 28)",
        "notification second: id: there is a notification second above (line 30)",
    ):
        assert f"{run.file}: {line}" in wrong.err, wrong.err
    assert "notification thumbnails: topics: there is no topic 'adit' of remora's own (line 9)" in unknown.err
    assert run.apply("", "--dry-run").code == Exit.OK


def test_too_many(run: Commands) -> None:
    """A file with more than 1,000 notifications is refused, and one with 1,000 is not."""
    each = '[[notification]]\nid = "n{}"\ntopics = ["audit"]\nbuckets = ["b{}"]\n'

    refused = run.apply(TOPICS + "".join(each.format(i, i) for i in range(1001)))

    assert refused.code == Exit.CONFIG
    assert "1001 notifications are more than 1000" in refused.err
    assert run.apply(TOPICS + "".join(each.format(i, i) for i in range(1000)), "--dry-run").code == Exit.DIFFERS


def test_one_by_one(run: Commands) -> None:
    """`create`, `list`, `show` and `rm` make, show and remove one; another of the same id needs --replace."""
    run.apply(TOPICS)
    asked = (
        "--topic", "thumbs", "--topic", "audit", "--bucket", "photos", "--event", "s3:ObjectCreated:*",
        "--prefix", "2026/", "--suffix", ".jpg", "--regex", ".*", "--size-min", "1B", "--size-max", "1GB",
        "--metadata", "x-amz-meta-class=hot", "--tag", "project=remora",
    )  # fmt: skip

    made = run("notification", "create", "thumbnails", *asked)
    again = run("notification", "create", "thumbnails", *asked)
    replaced = run("notification", "create", "thumbnails", *asked, "--bucket", "raw-*", "--replace")
    shown = run("notification", "show", "thumbnails")
    (listed,) = run.notifications()
    removed = run("notification", "rm", "thumbnails")
    gone = run("notification", "rm", "thumbnails")

    assert (made.code, again.code, replaced.code, shown.code, removed.code, gone.code) == (0, 1, 0, 0, 0, 1), made.err
    assert "notification thumbnails is there already" in again.err
    assert "there is no notification thumbnails" in gone.err
    assert listed == {
        "id": "thumbnails", "topics": ["thumbs", "audit"], "buckets": ["photos", "raw-*"],
        "events": ["s3:ObjectCreated:*"],
        "filter": {
            "prefix": "2026/", "suffix": ".jpg", "regex": ".*", "size_min": 1, "size_max": 10**9,
            "metadata": {"x-amz-meta-class": "hot"}, "tags": {"project": "remora"},
        },
    }  # fmt: skip
    assert "filter.metadata: x-amz-meta-class=hot\n" in shown.out.decode()
    assert not run.notifications()


@pytest.mark.parametrize(("args", "code", "why"), [
    (("n", "--topic", "nowhere"), Exit.FAILURE, "there is no topic 'nowhere' of remora's own"),
    (("n", "--topic", "audit", "--regex", "[a-"), Exit.USAGE, "regex: RE2 does not take it"),
    (("n", "--topic", "audit", "--event", "ObjectCreated"), Exit.USAGE, "did you mean s3:ObjectCreated:"),
    (("n", "--topic", "audit", "--size-min=-1B"), Exit.USAGE, "a size is not negative"),
    (("n", "--topic", "audit", "--tag", "x"), Exit.USAGE, "expected NAME=VALUE"),
    (("n", "--topic", "audit", "--tag", "x=1", "--tag", "x=2"), Exit.USAGE, "x stands twice"),
    (("n", "--topic", "audit", "--prefix", "a\udcff"), Exit.USAGE, "prefix: is not UTF-8"),
])  # fmt: skip
def test_create_refuses(run: Commands, args: tuple[str, ...], code: int, why: str) -> None:
    """`create` refuses what a file is refused for, and makes nothing."""
    run.apply(TOPICS)

    refused = run("notification", "create", *args)

    assert (refused.code, why in refused.err) == (code, True), refused.err
    assert not run.notifications()


def test_tried_without_sending(run: Commands) -> None:
    """`test` shows which notifications an event would match, and the rule that refuses it of each other one."""
    run.apply(TOPICS + THUMBNAILS + '[[notification]]\nid = "all"\ntopics = ["audit"]\nevents = ["ObjectRemoved:*"]\n')
    like = ("--metadata", "x-amz-meta-class=hot", "--tag", "project=remora", "--size", "3MB")

    matching = run("notification", "test", "photos", "2026/cat.jpg", *like)
    none = run("notification", "test", "photos", "2026/cat.jpg", "--json")
    raw = run("notification", "test", "photos", "2026/\udcff.jpg", *like, "--tag", "other=\udcff", "--json")

    assert {each["id"]: each["refused_by"] for each in json.loads(raw.out)} == {"all": "events", "thumbnails": "regex"}
    assert matching.code == Exit.OK
    assert [line.split()[:3] for line in matching.out.decode().splitlines()[1:]] == [
        ["all", "no:", "events"],
        ["thumbnails", "yes", "thumbs,"],
    ]
    assert none.code == Exit.FAILURE
    assert {each["id"]: each["refused_by"] for each in json.loads(none.out)} == {
        "all": "events", "thumbnails": "size_min",
    }  # fmt: skip


def test_a_topic_that_notifications_name_stays(run: Commands) -> None:
    """`topic rm` refuses a topic that notifications send to and names them, before it drains; so does --prune. `topic
    show` names them, too."""
    run.apply(TOPICS + THUMBNAILS)

    refused = [
        run("topic", "rm", "audit"),
        run("topic", "rm", "audit", "--drain"),
        run("topic", "rm", "audit", "--discard"),
    ]
    pruned = run.apply(TOPICS.replace("[topic.audit]", "[topic.other]") + THUMBNAILS, "--prune")
    shown = json.loads(run("topic", "show", "audit", "--json").out)
    run("notification", "rm", "thumbnails")
    removed = run("topic", "rm", "audit")

    assert [each.code for each in refused] == [Exit.FAILURE] * 3
    assert all("notifications send to it (thumbnails)" in each.err for each in refused)
    assert "there is no topic 'audit' of remora's own" in pruned.err
    assert shown["notifications"] == ["thumbnails"]
    assert shown["closed"] is False
    assert removed.code == Exit.OK, removed.err


def test_a_notification_that_is_made_while_its_topic_drains(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain ends as soon as a notification names its topic, which then stays closed; the notification is named."""

    async def waiting(store: ShardStore, topic: Topic) -> int:
        await store.notifications.change(None, Notification("late", (topic.name,)))
        return 0

    monkeypatch.setattr(own_topic, "_waiting", waiting)

    run.apply(TOPICS)
    done = run("topic", "rm", "audit", "--drain")

    assert done.code == Exit.FAILURE
    assert "topic audit stays: notifications send to it (late)" in done.err
    assert "stays closed for new events" in done.err
    assert "--discard" not in done.err
