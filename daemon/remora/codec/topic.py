"""Topics as radosgw's metadata objects hold them, and the arguments of their endpoints.

Up to Reef, and later until `notification_v2` is enabled, one object per tenant (`pubsub.<tenant>`) holds the map
of all its topics; since Squid each topic has an object of its own (`topic.<tenant or account>:<name>`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote, unquote_plus

from remora.codec.ceph import Cursor
from remora.model.errors import CodecError, EndpointMisconfigured
from remora.model.topic import UNSET, Delivery, Source, Target, Topic
from remora.model.traffic import CONFIGURABLE

DELIVERY = "remora-delivery"
"""The endpoint argument that names a topic's delivery mode; radosgw keeps it, as it keeps all that it does not know."""

DEAD_LETTER_TOPIC = "remora-dead-letter-topic"
"""The endpoint argument that names where dead letters go in addition to the store."""

KEYS = "remora-keys"
"""The endpoint argument that says how senders of events write object keys: `encoded` as S3 does, or `literal`."""

TRAFFIC_CLASS = "remora-traffic-class"
"""The endpoint argument by which a topic asks for a lower traffic class; it never raises one."""

SLO = "remora-slo"
"""The endpoint argument that declares a topic's service level, such as `99% < 5s over 28d`; nothing depends on it."""

SPILL = "remora-spill"
"""The endpoint argument that says whether entries of the topic's queues may be moved beside them: `on` or `off`."""

CERTIFICATE = "ssl-certificate-location"
"""The endpoint argument that names the file with the certificate as whose holder the endpoint is opened."""

LIMITS = ("time_to_live", "max_retries", "retry_sleep_duration")
"""The attributes that have fields of their own since Ceph 19; before, radosgw keeps them among the arguments."""

_TOPIC_VERSION = 4
_DEST_VERSION = 8
_FIRST_ACCOUNT_VERSION = 128  # an owner that is not a user is written with versions from here on


def decode_topics(data: bytes) -> list[Topic]:
    """The topics of a tenant's object, in its order.

    The object also holds a copy of a topic for every notification that uses it; those are left out. So is a
    topic that cannot be decoded while its neighbours can: one of them must not cost the others.
    """
    outer = Cursor(data, "").struct("topics", 2)
    topics = []
    for name in outer.items("topics", 10):
        outer.string(f"{name}.key")
        item = outer.any_struct(name)
        try:
            # Version 1 wraps each topic together with the names of its subscriptions.
            topic = _topic(item if outer.version >= 2 else item.any_struct("topic"))
        except CodecError:
            continue
        if topic.name == topic.target.topic:
            topics.append(topic)
    return topics


def decode_topic(data: bytes) -> Topic:
    """The topic of an object of its own."""
    return _topic(Cursor(data, "").any_struct("topic"))


def _topic(cursor: Cursor) -> Topic:
    cursor.refuse_newer_than(_TOPIC_VERSION)
    tenant, user = _owner(cursor)
    name = _text(cursor, "name")
    if cursor.version < 2:
        raise cursor.error("dest", "a topic of version 1 has no destination")
    dest = cursor.struct("dest", _DEST_VERSION)
    arn = _text(cursor, "arn")
    opaque_data = cursor.string("opaque_data") if cursor.version >= 3 else b""
    found = _with_destination(dest, name, opaque_data)
    tenant_or_account = _arn_tenant(arn, tenant)
    owner = (f"{tenant}${user}" if tenant else user) or tenant_or_account
    return replace(found, tenant=tenant_or_account, owner=owner)


def _with_destination(dest: Cursor, name: str, opaque_data: bytes) -> Topic:
    version = dest.version
    dest.string("bucket_name")
    dest.string("oid_prefix")
    target = Target(
        uri=_text(dest, "push_endpoint"),
        args=_text(dest, "push_endpoint_args") if version >= 2 else "",
        topic=_text(dest, "arn_topic") if version >= 3 else name,
    )
    if version >= 4:
        dest.flag("stored_secret")
    persistent = version >= 5 and dest.flag("persistent")
    fields = [_limit(dest, each) if version >= 6 else None for each in LIMITS]
    time_to_live, max_retries, retry_sleep = limits_of(fields, target.args)
    queue = _text(dest, "persistent_queue") if version >= 7 else ""
    shards = dest.u32("num_shards") if version >= 8 else 1
    return Topic(
        name=name,
        tenant="",
        queue=queue or target.topic,
        target=target,
        persistent=persistent,
        opaque_data=opaque_data,
        time_to_live_s=time_to_live,
        max_retries=max_retries,
        retry_sleep_s=retry_sleep,
        source=Source.METADATA,
        shards=max(1, shards),
    )


def _owner(cursor: Cursor) -> tuple[str, str]:
    """Tenant and name of an owner that is a user; empty when it is an account, which the topic's ARN names."""
    owner = cursor.any_struct("owner")
    if owner.version >= _FIRST_ACCOUNT_VERSION:
        return "", ""
    return _text(owner, "tenant"), _text(owner, "id")


def _arn_tenant(arn: str, default: str) -> str:
    """The tenant or account in `arn:aws:sns:<zonegroup>:<tenant>:<name>`.

    It is there in every release; the owner of a topic from Pacific has the tenant in the place of the user.
    """
    parts = arn.split(":")
    return parts[4] if len(parts) == 6 else default


def _limit(cursor: Cursor, name: str) -> int | None:
    value = cursor.u32(name)
    return None if value == UNSET else value


def _text(cursor: Cursor, name: str) -> str:
    """For people, drivers and metric labels, none of which can take a lone surrogate."""
    return cursor.string(name).decode("utf-8", "replace")


def parse_args(text: str) -> dict[str, str]:
    """The endpoint arguments in `k=v&k=v`, read as radosgw reads them; of equal names the last one counts.

    radosgw writes the values as they are, and decodes `%41` and `+` when it reads them. What it writes always
    has a `=`, so that a piece without one belongs to the value before it: such a value is whole here, while
    radosgw cuts it off. Releases up to Reef also keep the parameters of the request that made the topic; those
    of the form `Attributes.entry.N.key` are left out, and readers ignore names that they do not know.
    """
    found: dict[str, str] = {}
    name = ""
    for piece in text.split("&"):
        if "=" in piece:
            name, _, value = unquote_plus(piece).partition("=")
            found[name] = value
        elif name:
            found[name] += "&" + unquote_plus(piece)
    return {name: value for name, value in found.items() if not name.startswith("Attributes.")}


def limits_of(fields: Sequence[int | None], args: str) -> list[int | None]:
    """The three `LIMITS` of a topic: each as its own field has it, else as the endpoint's arguments do, else None.

    A value that is no number counts as absent; `limit_remarks` tells of it.
    """
    if not any(name in args for name in LIMITS):  # as good as always
        return list(fields)
    given = parse_args(args)
    return [
        _number(given.get(name, "")) if field is None else field for name, field in zip(LIMITS, fields, strict=True)
    ]


def limit_remarks(args: str) -> list[str]:
    """What cannot be read of the `LIMITS` among an endpoint's arguments, in words without their values."""
    given = parse_args(args) if any(name in args for name in LIMITS) else {}
    return [
        f"{name} is no whole number of 0 to {UNSET - 1} and is ignored"
        for name in LIMITS
        if given.get(name, "") not in _LEFT_OPEN and _number(given[name]) is None
    ]


_LEFT_OPEN = ("", "None", str(UNSET))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,10}", text) and int(text) < UNSET else None


def spills(args: str, default: bool) -> bool:
    """Whether entries of a topic may be moved beside its queues; a topic that does not say follows the default."""
    return {"on": True, "off": False}.get(parse_args(args).get(SPILL, ""), default)


def class_remarks(args: str) -> list[str]:
    """What is wrong with the traffic class, and the word on spilling, that a topic's arguments have."""
    known = parse_args(args)
    asked, spill = known.get(TRAFFIC_CLASS, ""), known.get(SPILL, "")
    remarks = [f"{SPILL} is neither on nor off and is ignored"] if spill not in ("", "on", "off") else []
    if asked and asked not in CONFIGURABLE:
        remarks.append(f"{TRAFFIC_CLASS} is none of {', '.join(CONFIGURABLE)} and is ignored")
    return remarks


def delivery_of(target: Target, default: Delivery) -> Delivery:
    """The delivery mode that a target's arguments ask for. Raises EndpointMisconfigured for a word that is none."""
    asked = parse_args(target.args).get(DELIVERY, "")
    try:
        return Delivery(asked) if asked else default
    except ValueError:
        modes = " or ".join(Delivery)
        raise EndpointMisconfigured(f"{DELIVERY} must be {modes}, not {asked[:40]!r}") from None


def usable_delivery(target: Target, default: Delivery, *, is_transactional: bool) -> tuple[Delivery, list[str]]:
    """The delivery mode that a target's topic has, and remarks on it.

    An endpoint that is not transactional delivers at least once. That is a remark where the default asks for more, and
    EndpointMisconfigured where the topic itself does.
    """
    asked = delivery_of(target, default)
    if is_transactional or asked is Delivery.AT_LEAST_ONCE:
        return asked, []
    if parse_args(target.args).get(DELIVERY):
        raise EndpointMisconfigured(
            f"the topic asks for exactly-once, and {target.scheme}:// endpoints deliver at-least-once only"
        )
    return Delivery.AT_LEAST_ONCE, [
        f"delivery.mode asks for exactly-once, and {target.scheme}:// endpoints deliver at-least-once only"
    ]


def has_literal_keys(target: Target) -> bool:
    """Whether senders write the object keys of a target's events as they are, and not URL-encoded.

    Raises EndpointMisconfigured for a word that is neither `encoded` nor `literal`.
    """
    asked = parse_args(target.args).get(KEYS, "")
    if asked not in ("", "encoded", "literal"):
        raise EndpointMisconfigured(f"{KEYS} must be encoded or literal, not {asked[:40]!r}")
    return asked == "literal"


def join_args(args: Mapping[str, str]) -> str:
    """The text that `parse_args` reads as these arguments; each name is one that an endpoint knows."""
    return "&".join(f"{name}={quote(value, safe='/:,.-_')}" for name, value in args.items())
