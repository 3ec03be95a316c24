"""Topic metadata of all releases, and the arguments of endpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.ceph import FieldWriter
from remora.codec.topic import (
    class_remarks,
    decode_topic,
    decode_topics,
    delivery_of,
    join_args,
    limit_remarks,
    parse_args,
)
from remora.model.errors import CodecError, EndpointMisconfigured
from remora.model.topic import Delivery, Source, Target, Topic
from unit.codec.samples import framed, topic_object

ARGS_18 = (
    'OpaqueData=opaque+é+"q"+\\+/&Version=2010-03-31&persistent=true&push-endpoint=http://127.0.0.1:9918'
    "&verify-ssl=false"
)


def test_the_real_object_of_a_tenant_gives_its_topics_without_the_copies() -> None:
    """Of the six topics that radosgw 18.2.7 wrote, the two that users made are found."""
    topics = decode_topics(topic_object("18.2.7"))

    assert [t.name for t in topics] == ["held18", "t18"]
    assert topics[0] == Topic(
        name="held18",
        tenant="",
        queue="held18",
        target=Target("http://127.0.0.1:9918", ARGS_18, "held18"),
        persistent=True,
        opaque_data='opaque+é+"q"+\\+/'.encode(),
        source=Source.METADATA,
    )


def test_the_real_object_of_a_topic_is_read() -> None:
    """What radosgw 20.2.4 wrote names its queue and owner, and leaves the limits to the global options."""
    assert decode_topic(topic_object("20.2.4")) == Topic(
        name="t20",
        tenant="",
        queue=":t20",
        target=Target("http://127.0.0.1:9921", "Version=2010-03-31&verify-ssl=false", "t20"),
        persistent=True,
        opaque_data='opaque é "q" \\ /'.encode(),
        owner="u1",
    )


USER = framed(lambda w: w.string(b"tenant1").string(b"u1").string(b""), 2)
ACCOUNT = framed(lambda w: w.raw(b"\xff" * 20), 129, 129)


def topic_bytes(
    version: int = 4,
    dest_version: int = 8,
    *,
    owner: bytes = USER,
    arn: bytes = b"arn:aws:sns:zg:tenant1:orders",
    name: bytes = b"orders",
    sent_to: bytes = b"orders",
    limits: tuple[int, int, int] = (60, 0, 5),
    queue: bytes = b"tenant1:orders",
    shards: int = 11,
    persistent: int = 1,
    compat: int = 1,
    args: bytes = b"a=1",
) -> bytes:
    """A topic with the fields of the given versions."""

    def dest(w: FieldWriter) -> None:
        fields: list[Callable[[], object]] = [
            lambda: w.string(b"").string(b"").string(b"kafka://h"),
            lambda: w.string(args),
            lambda: w.string(sent_to),
            lambda: w.u8(1),
            lambda: w.u8(persistent),
            lambda: w.u32(limits[0]).u32(limits[1]).u32(limits[2]),
            lambda: w.string(queue),
            lambda: w.u32(shards),
        ]
        for write in fields[:dest_version]:
            write()

    def topic(w: FieldWriter) -> None:
        w.raw(owner).string(name)
        if version >= 2:
            w.raw(framed(dest, dest_version))
        w.string(arn)
        if version >= 3:
            w.string(b"opaque")
        if version >= 4:
            w.string(b"{}")

    return framed(topic, version, compat)


@pytest.mark.parametrize("dest_version", range(1, 9))
def test_a_destination_of_every_version_is_read(dest_version: int) -> None:
    """Each version adds its fields; what is absent has the value that radosgw assumes."""
    topic = decode_topic(topic_bytes(dest_version=dest_version))

    assert (topic.target.uri, topic.target.args) == ("kafka://h", "a=1" if dest_version >= 2 else "")
    assert topic.target.topic == "orders"
    assert topic.persistent is (dest_version >= 5)
    limits = (topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s)
    assert limits == ((60, 0, 5) if dest_version >= 6 else (None, None, None))
    assert topic.queue == ("tenant1:orders" if dest_version >= 7 else "orders")
    assert topic.shards == (11 if dest_version >= 8 else 1)


@pytest.mark.parametrize("version", [2, 3, 4, 9])
def test_a_topic_of_every_version_is_read(version: int) -> None:
    """Opaque data came with version 3, and newer versions change nothing that is known."""
    topic = decode_topic(topic_bytes(version))

    assert topic.opaque_data == (b"opaque" if version >= 3 else b"")
    assert (topic.name, topic.tenant) == ("orders", "tenant1")


def test_limits_that_are_left_to_the_gateway_are_none_and_zero_is_kept() -> None:
    """An unset limit differs from an explicit 0."""
    topic = decode_topic(topic_bytes(limits=(0xFFFF_FFFF, 0, 0xFFFF_FFFF)))

    assert (topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s) == (None, 0, None)


@pytest.mark.parametrize(
    ("args", "limits"),
    [
        ("", (None, None, None)),
        ("time_to_live=60&max_retries=0&retry_sleep_duration=5", (60, 0, 5)),
        ("use-ssl=true&max_retries=%37", (None, 7, None)),
        ("time_to_live=None&max_retries=&retry_sleep_duration=4294967295", (None, None, None)),
        ("time_to_live=-1&max_retries=many&retry_sleep_duration=99999999999", (None, None, None)),
        ("time_to_live=1_0&max_retries=+1&retry_sleep_duration=\u0663", (None, None, None)),
        ("Attributes.entry.1.key=max_retries&Attributes.entry.1.value=3&max_retries=3", (None, 3, None)),
    ],
)
@pytest.mark.parametrize("unset", [False, True])
def test_limits_are_read_from_the_arguments_where_no_field_has_them(
    args: str, limits: tuple[int | None, ...], unset: bool
) -> None:
    """A topic of Ceph 16.2 has its limits among the arguments; one that a newer release left open, too."""
    topic = decode_topic(
        topic_bytes(dest_version=6, limits=(0xFFFF_FFFF,) * 3, args=args.encode())
        if unset
        else topic_bytes(dest_version=5, args=args.encode())
    )

    assert (topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s) == limits


def test_a_limit_of_its_own_field_wins_over_the_arguments() -> None:
    """Where a limit stands in its own field, as since Ceph 19, an argument of the same name counts for nothing."""
    args = b"time_to_live=1&max_retries=2&retry_sleep_duration=3"
    topic = decode_topic(topic_bytes(limits=(60, 0, 0xFFFF_FFFF), args=args))

    assert (topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s) == (60, 0, 3)


@pytest.mark.parametrize(
    ("args", "remarked"),
    [
        ("", ""),
        ("time_to_live=None&max_retries=0&retry_sleep_duration=", ""),
        ("time_to_live=4294967295", ""),
        ("max_retries=4294967296", "max_retries"),
        ("retry_sleep_duration=5s", "retry_sleep_duration"),
    ],
)
def test_a_limit_that_cannot_be_read_is_remarked(args: str, remarked: str) -> None:
    """An argument that is no number is remarked by its name; one that leaves the limit open is not."""
    assert [each.partition(" ")[0] for each in limit_remarks(args)] == ([remarked] if remarked else [])


def test_a_topic_without_a_queue_name_has_that_of_its_destination() -> None:
    """An empty persistent_queue means the name that is sent to, and no shards mean one."""
    topic = decode_topic(topic_bytes(queue=b"", shards=0))

    assert (topic.queue, topic.shards) == ("orders", 1)


@pytest.mark.parametrize(
    ("owner", "arn", "tenant", "name"),
    [
        (USER, b"arn:aws:sns:zg:tenant1:orders", "tenant1", "tenant1$u1"),
        (USER, b"not an arn", "tenant1", "tenant1$u1"),
        (ACCOUNT, b"arn:aws:sns:zg:RGW1:orders", "RGW1", "RGW1"),
        (ACCOUNT, b"not an arn", "", ""),
        (framed(lambda w: w.string(b"").string(b"ten1").string(b""), 2), b"arn:aws:sns:zg:ten1:orders", "ten1", "ten1"),
        (framed(lambda w: w.string(b"").string(b"amy").string(b""), 2), b"arn:aws:sns:zg::orders", "", "amy"),
    ],
)
def test_tenant_and_owner_are_found_for_users_and_accounts(owner: bytes, arn: bytes, tenant: str, name: str) -> None:
    """The ARN names the tenant or account in every release; the owner's own field does where it is a user."""
    topic = decode_topic(topic_bytes(owner=owner, arn=arn))

    assert (topic.tenant, topic.owner) == (tenant, name)


def tenant_object(topics: list[bytes], version: int) -> bytes:
    """A tenant's object, in the form before or after subscriptions went."""

    def item(topic: bytes) -> bytes:
        return topic if version >= 2 else framed(lambda w: w.raw(topic).u32(1).string(b"a subscription"))

    def body(w: FieldWriter) -> None:
        w.u32(len(topics))
        for i, topic in enumerate(topics):
            w.string(b"key-%d" % i).raw(item(topic))

    return framed(body, version, version)


@pytest.mark.parametrize("version", [1, 2])
def test_both_forms_of_a_tenants_object_are_read(version: int) -> None:
    """Pacific's map with subscriptions and the later one without give the same topics."""
    data = tenant_object([topic_bytes(3, 5), topic_bytes(3, 5, name=b"n1_orders")], version)

    assert [t.name for t in decode_topics(data)] == ["orders"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_topic_that_cannot_be_decoded_does_not_cost_the_others(version: int) -> None:
    """Of three topics the one that needs a newer reader, or is broken inside, is left out."""
    broken = framed(lambda w: w.raw(USER).u32(10_000), 4)
    topics = [topic_bytes(), topic_bytes(compat=9), broken, topic_bytes(name=b"last", sent_to=b"last")]

    assert [t.name for t in decode_topics(tenant_object(topics, version))] == ["orders", "last"]


def test_an_object_of_an_incompatible_version_is_refused() -> None:
    """A map that needs a newer reader says so; a single such topic does too."""
    with pytest.raises(CodecError, match="topics at byte 0: needs a reader of version 3"):
        decode_topics(tenant_object([], 3))
    with pytest.raises(CodecError, match="topic at byte 0: needs a reader of version 9"):
        decode_topic(topic_bytes(compat=9))


def test_text_that_is_not_utf8_is_replaced() -> None:
    """Names and URIs can always be printed and sent to drivers."""
    topic = decode_topic(topic_bytes(name=b"a\xff", queue=b"q\xfe"))

    assert (topic.name, topic.queue) == ("a\ufffd", "q\ufffd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1&b=2", {"a": "1", "b": "2"}),
        ("a=1&a=2", {"a": "2"}),
        ("password=x=y==", {"password": "x=y=="}),
        ("password=x&y&use-ssl=true", {"password": "x&y", "use-ssl": "true"}),
        ("ca-location=/etc/my%20ca.pem&user-name=a+b", {"ca-location": "/etc/my ca.pem", "user-name": "a b"}),
        ("a=100%&b=%zz", {"a": "100%", "b": "%zz"}),
        ("mechanism=", {"mechanism": ""}),
        ("&&stray&a=1", {"a": "1"}),
        (ARGS_18.replace("+", " "), {**parse_args(ARGS_18)}),
        (
            "Attributes.entry.1.key=push-endpoint&Attributes.entry.1.value=http://h&kafka-ack-level=none",
            {"kafka-ack-level": "none"},
        ),
        ("kafka-brokers=h1:9092,h2:9092&mechanism=SCRAM-SHA-512&password=p%26q", None),
    ],
)
def test_arguments_are_read_as_radosgw_reads_them(text: str, expected: dict[str, str] | None) -> None:
    """Values need no quoting except for what radosgw itself decodes; what it lists of the request is left out."""
    if expected is None:
        expected = {"kafka-brokers": "h1:9092,h2:9092", "mechanism": "SCRAM-SHA-512", "password": "p&q"}

    assert parse_args(text) == expected


@given(st.text())
def test_any_text_can_be_read_as_arguments(text: str) -> None:
    """Whatever a topic holds, reading its arguments gives names and values."""
    assert all(isinstance(value, str) for value in parse_args(text).values())
    assert not any(name.startswith("Attributes.") for name in parse_args(text))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,20}", fullmatch=True), st.text(st.characters(codec="utf-8"))))
def test_arguments_that_are_joined_are_read_again(args: dict[str, str]) -> None:
    """Whatever a value holds, `&`, `=`, `+` and `%` too, it is read as it was given."""
    assert parse_args(join_args(args)) == args


@pytest.mark.parametrize("default", Delivery)
@pytest.mark.parametrize("mode", Delivery)
def test_a_target_names_its_delivery_mode(mode: Delivery, default: Delivery) -> None:
    """The argument remora-delivery decides the mode; where it is missing or empty the default does."""
    assert delivery_of(Target("kafka://b", f"use-ssl=true&remora-delivery={mode}", "t"), default) is mode
    assert delivery_of(Target("kafka://b", "use-ssl=true", "t"), default) is default
    assert delivery_of(Target("kafka://b", "remora-delivery=", "t"), default) is default


def test_an_unknown_delivery_mode_is_a_misconfiguration() -> None:
    """Any other word stops the topic and says which words there are."""
    with pytest.raises(EndpointMisconfigured, match="must be at-least-once or exactly-once"):
        delivery_of(Target("kafka://b", "remora-delivery=exactlyonce", "t"), Delivery.AT_LEAST_ONCE)


@pytest.mark.parametrize(
    ("args", "remarks"),
    [("", 0), ("remora-traffic-class=replay", 0), ("remora-traffic-class=relief", 1), ("remora-traffic-class=x", 1)],
)
def test_a_traffic_class_that_is_none_is_remarked_on(args: str, remarks: int) -> None:
    """A topic may ask for the classes that an operator may name; every other word is told, and counts as nothing."""
    assert len(class_remarks(args)) == remarks
