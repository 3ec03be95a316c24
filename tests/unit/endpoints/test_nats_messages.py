"""Messages of NATS: subjects, headers, what a server sends, and keys."""

from __future__ import annotations

import base64
import itertools
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from devkit.clusters.nkeys import credentials, public_key, seed_of, token
from remora.endpoints.nats.errors import violation, why_ended, why_refused
from remora.endpoints.nats.lines import MOST_LINE_BYTES, BadLine, OperationSplitter, ServerOperation
from remora.endpoints.nats.messages import MessageSource, letter_message
from remora.endpoints.nats.nkeys import read_key
from remora.endpoints.nats.streams import Stream, last_place, read_headers, read_last, read_stream
from remora.endpoints.nats.target import MOST_TOKEN_BYTES, covers, read_template
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import DeadLetter
from support.kafka_sender import make_records

# -------------------------------------------------------------------------------------------- subjects


@pytest.mark.parametrize(
    ("template", "key", "subject"),
    [
        ("{topic}.{bucket}.{key}", b"photos/cat.jpg", b"t%2E1.photos.cat%2Ejpg"),
        ("{topic}.{bucket}.{key}", b"photos/2024/a b", b"t%2E1.photos.2024/a%20b"),
        ("s3.{bucket}", b"a.b/x", b"s3.a%2Eb"),
        ("x.{key}", b"b/*>$%\xff\n", b"x.%2A%3E%24%25%FF%0A"),
        ("x.{key}", b"b/", b"x.%"),
        ("x.{bucket}.y", b"/k", b"x.%.y"),
        ("fixed", b"b/k", b"fixed"),
    ],
)
def test_subjects(template: str, key: bytes, subject: bytes) -> None:
    """Topic, bucket and key are one token each, in which no byte means anything to the server."""
    assert read_template(template, "t.1").subject(key) == subject


@given(st.lists(st.binary(max_size=1500), min_size=2, max_size=2, unique=True))
def test_no_two_keys_share_a_subject(names: list[bytes]) -> None:
    """Keys that differ in any byte have subjects that differ, of one token each and of bounded length."""
    made = [read_template("{topic}.{bucket}.{key}", "t").subject(b"b/" + each) for each in names]

    assert made[0] != made[1]
    for each in made:
        assert len(each.split(b".")) == 3
        assert len(each.split(b".")[2]) <= MOST_TOKEN_BYTES
        assert each.isascii()
        assert not set(each) & set(b" *>\r\n\t")


@pytest.mark.parametrize(
    "template", ["", "a..b", "{key", "x{key}", "a.*", ">", "a b.{key}", "$JS.{key}", "{other}", "a" * 256]
)
def test_templates_that_are_refused(template: str) -> None:
    """A place is a token of its own, and the others are plain."""
    with pytest.raises(EndpointMisconfigured, match=r"^nats-subject"):
        read_template(template, "t")


def test_which_templates_have_a_subject_for_each_key() -> None:
    """Those with both bucket and key."""
    assert read_template("{bucket}.x.{key}", "t").is_one_a_key
    assert not read_template("{topic}.{key}", "t").is_one_a_key
    assert not read_template("{topic}.{bucket}", "t").is_one_a_key


@pytest.mark.parametrize(
    ("taken", "has_it"),
    [
        (["t.>"], True), (["t.*.*"], True), ([">"], True), (["x", "t.*.>"], True),
        (["t.*"], False), (["t.b.*"], False), (["t.*.*.>"], False), (["u.>"], False), ([], False),
    ],
)  # fmt: skip
def test_streams_that_take_all_subjects_of_a_topic(taken: list[str], has_it: bool) -> None:
    """A stream must take whatever bucket and key there may be."""
    assert covers(taken, read_template("{topic}.{bucket}.{key}", "t").pattern) == has_it


# -------------------------------------------------------------------------------------------- messages


def test_the_message_of_an_event() -> None:
    """It names the stream that is to take it, its place twice, and the event; the body is as it came."""
    record = make_records(0, 1)[0]._replace(event_id=b"e 1", sequence=b"t:7", traceparent=b"00-a-b-01", body=b"{}\r\n")
    made = MessageSource("tenant:q 1", "inc", "EVENTS").message(record, b"t.b.k")

    headers = read_headers(made.headers)
    assert made.headers.startswith(b"NATS/1.0\r\n")
    assert made.headers.endswith(b"\r\n\r\n")
    assert headers == {
        b"nats-expected-stream": b"EVENTS", b"nats-msg-id": b"tenant:q%201/inc:0/0", b"remora-shard": b"tenant:q%201",
        b"remora-pos": b"inc:0/0", b"remora-next": b"inc:0/1", b"remora-event-id": b"e%201", b"remora-seq": b"t:7",
        b"traceparent": b"00-a-b-01",
    }  # fmt: skip
    sizes = b"%d %d" % (len(made.headers), len(made.headers) + 4)
    assert made.publish(b"_I.7") == b"HPUB t.b.k _I.7 " + sizes + b"\r\n" + made.headers + b"{}\r\n\r\n"
    assert made.nbytes == len(made.headers) + 4


def test_the_message_of_a_letter() -> None:
    """A letter has the entry's bytes and an id of its own; without room for the bytes it says how many there are."""
    letter = DeadLetter("q", "inc", "0/1", "0/2", "refused", "line\r\nend", 3, 1.0, 2.0, b"\x00raw")
    message_id, made = letter_message(letter, b"letters", 1000)
    _, short = letter_message(letter, b"letters", 10)

    headers = read_headers(made.headers)
    assert (made.subject, made.body) == (b"letters", b"\x00raw")
    assert headers[b"nats-msg-id"] == message_id
    assert headers[b"remora-pos"] == b"inc:0/1"
    assert headers[b"remora-reason"] == b"line%0D%0Aend"
    assert short.body == b""
    assert read_headers(short.headers)[b"remora-omitted-bytes"] == b"4"


# ----------------------------------------------------------------------------------- what a server sends

SAID = (
    b"INFO {\"a\":1} \r\nPING\r\n-ERR 'Stale Connection'\r\n"
    b"MSG _I.a 1 5\r\nhello\r\nMSG _I.b 1 reply 0\r\n\r\nHMSG _I.c 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n+OK\r\n"
)


@given(st.lists(st.integers(0, len(SAID)), max_size=8))
def test_operations_however_they_are_cut(cuts: list[int]) -> None:
    """Operations are read as they are, in whatever pieces they come."""
    splitter, found = OperationSplitter(), list[ServerOperation]()
    places = [0, *sorted(cuts), len(SAID)]
    for begin, end in itertools.pairwise(places):
        found += splitter.feed(SAID[begin:end])

    assert [(each.word, each.subject, each.headers, each.payload) for each in found] == [
        (b"INFO", b"", b"", b""), (b"PING", b"", b"", b""), (b"-ERR", b"", b"", b""),
        (b"MSG", b"_I.a", b"", b"hello"), (b"MSG", b"_I.b", b"", b""), (b"HMSG", b"_I.c", b"NATS/1.0\r\n\r\n", b"hi"),
        (b"+OK", b"", b"", b""),
    ]  # fmt: skip
    assert found[0].rest == b'{"a":1}'


@pytest.mark.parametrize(
    "data",
    [
        b"MSG a 1 x\r\n", b"MSG a 1\r\n", b"HMSG a 1 9 3\r\n", b"MSG a 1 99999999999\r\n",
        pytest.param(b"MSG a 1 " + b"9" * 5000 + b"\r\n", id="digits"), b"x" * (MOST_LINE_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_operation(data: bytes) -> None:
    """A message without sizes, or with such as make no sense, and a line without end are refused."""
    with pytest.raises(BadLine):
        list(OperationSplitter().feed(data))


# ------------------------------------------------------------------------------------- answers of JetStream


def answer(**config: object) -> bytes:
    return json.dumps({"type": "x", "config": {"name": "S", "subjects": ["t.>"], **config}}).encode()


def test_a_stream() -> None:
    """Window, limit and kind are the server's."""
    found = read_stream(answer(duplicate_window=5_000_000_000, max_msg_size=-1, storage="memory"), "S")

    assert found == Stream("S", ("t.>",), 5.0, None, "memory")
    assert read_stream(answer(max_msg_size=10), "S").most_bytes == 10


@pytest.mark.parametrize(
    ("stream", "pause_s", "looks", "said"),
    [
        (Stream("S", window_s=120), 40.0, True, []),
        (Stream("S", window_s=5), 40.0, True, ["drops copies for 5 s", "40 s apart", "last message", "read first"]),
        (Stream("S", window_s=5), 40.0, False, ["copies are possible"]),
        (Stream("S", window_s=120, storage="memory"), 40.0, True, ["in memory"]),
        (Stream("S", window_s=120, retention="workqueue"), 40.0, True, ["deletes what was consumed"]),
        (Stream("S", window_s=120, retention="workqueue"), 40.0, False, []),
    ],
)
def test_what_is_remarked_on_a_stream(stream: Stream, pause_s: float, looks: bool, said: list[str]) -> None:
    """A window that is shorter than the pauses, memory instead of a disk, and messages that do not stay."""
    remarks = " ".join(stream.remarks(pause_s, looks=looks))

    assert bool(remarks) == bool(said)
    assert [each for each in said if each not in remarks] == []


@pytest.mark.parametrize(
    "reply",
    [
        b"", b"[]", b"{}", pytest.param(b"[" * 2000, id="nested"), b'{"config": 1}',
        b'{"config": {"name": "S", "max_msg_size": "x"}}', b'{"config": {"name": "S", "max_msg_size": 1e999}}',
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense(reply: bytes) -> None:
    """It is transient."""
    with pytest.raises(EndpointUnavailable, match=r"^stream S: the server's answer cannot be read"):
        read_stream(reply, "stream S")


def last(headers: bytes) -> bytes:
    return json.dumps({"message": {"subject": "x", "seq": 1, "hdrs": base64.b64encode(headers).decode()}}).encode()


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        (last(b"NATS/1.0\r\nremora-shard: q\r\nRemora-Pos: inc:3/44\r\n\r\n"), (3, 44)),
        (last(b"NATS/1.0\r\nremora-shard: q\r\nremora-pos: other:3/44\r\n\r\n"), None),
        (last(b"NATS/1.0\r\nremora-shard: r\r\nremora-pos: inc:3/44\r\n\r\n"), None),
        (last(b"NATS/1.0\r\nremora-shard: q\r\nremora-pos: inc:x\r\n\r\n"), None),
        pytest.param(
            last(b"NATS/1.0\r\nremora-shard: q\r\nremora-pos: inc:%b/1\r\n\r\n" % (b"9" * 5000)), None, id="digits"
        ),
        (last(b""), None),
        (b'{"error": {"code": 404, "err_code": 10037}}', None),
    ],
)
def test_the_last_message_of_a_subject(reply: bytes, place: tuple[int, int] | None) -> None:
    """It tells a position of this queue in this incarnation only."""
    assert last_place(read_last(reply, "S"), b"q", b"inc:") == place


# -------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("code", "kind", "about"),
    [
        (10059, EndpointMisconfigured, "no such stream"), (10060, EndpointMisconfigured, "another stream"),
        (10039, EndpointMisconfigured, "not enabled"), (10109, EndpointMisconfigured, "sealed"),
        (10077, EndpointUnavailable, "may be full"), (10047, EndpointUnavailable, "no room"),
        (10008, EndpointUnavailable, "did not do it"), (None, EndpointUnavailable, "did not do it"),
        (10054, EntryRefused, "of this size"),
    ],
)  # fmt: skip
def test_what_a_stream_refuses(code: int | None, kind: type[EndpointError], about: str) -> None:
    """Errors are told apart by their codes, and no text of the server's is quoted."""
    error = why_refused({"code": 1, "err_code": code, "description": "secret"}, "stream S")

    assert type(error) is kind
    assert about in str(error)
    assert "secret" not in str(error)
    assert error.kind in ("configuration", "answered", "refused")


@pytest.mark.parametrize(
    ("text", "kind", "about"),
    [
        ("Authorization Violation", EndpointMisconfigured, "refused the log-in"),
        ("User Authentication Expired", EndpointMisconfigured, "expired or were revoked"),
        ("Authentication Timeout", EndpointUnavailable, "authentication timeout"),
        ("Secure Connection - TLS Required", EndpointMisconfigured, "nats+tls"),
        ("Stale Connection", EndpointUnavailable, "stale connection"),
        ("maximum connections exceeded", EndpointUnavailable, "maximum connections"),
        ('Strange "secret.subject"', EndpointUnavailable, "ended the connection"),
    ],
)
def test_what_ends_a_connection(text: str, kind: type[EndpointError], about: str) -> None:
    """What an operator has to do something about, and what passes; subjects and users are not repeated."""
    error = why_ended(text, "n:4222")

    assert type(error) is kind
    assert about in str(error)
    assert "secret" not in str(error)


def test_what_a_user_may_not_do() -> None:
    """It is read with its subject, as all releases write it."""
    assert violation('Permissions Violation for Publish to "a.b"') == ("publish", "a.b")
    assert violation('Permissions Violation for Subscription to "_INBOX.x.*"') == ("subscription", "_INBOX.x.*")
    assert violation("Permissions Violation") is None
    said = r'Permissions Violation for Publish to "t.b.a\"b\\c\'d"'
    assert violation(said) == ("publish", "t.b.a\"b\\c'd")


# ------------------------------------------------------------------------------------------------ keys


def test_keys_and_credentials() -> None:
    """A seed alone logs in by its nkey, a credentials file by its token; the signature is that of the key."""
    key, account = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    made = token(public_key(key, "U"), account, "A", {"type": "user"}, "u")
    bare = read_key(f"# mine\n{seed_of(key)}\n".encode(), "nats-credentials")
    full = read_key(credentials(made, key).encode(), "nats-credentials")

    assert (bare.public, bare.token) == (public_key(key, "U"), "")
    assert (full.public, full.token) == (public_key(key, "U"), made)
    signature = base64.urlsafe_b64decode(bare.sign(b"nonce") + "==")
    key.public_key().verify(signature, b"nonce")
    assert seed_of(key) not in repr(full)
    assert made not in repr(full)


@pytest.mark.parametrize(
    "damage", [lambda s: "", lambda s: s[:30] + ("A" if s[30] != "A" else "B") + s[31:], lambda s: "SA" + s[2:]]
)
def test_files_without_a_users_key(damage: object) -> None:
    """A file without a seed, with a damaged one or with an account's is refused, and nothing of it is repeated."""
    seed = seed_of(Ed25519PrivateKey.generate())
    assert callable(damage)
    with pytest.raises(EndpointMisconfigured) as caught:
        read_key(damage(seed).encode(), "nats-credentials")

    assert str(caught.value).startswith("nats-credentials: the file")
    assert seed[4:20] not in str(caught.value)
