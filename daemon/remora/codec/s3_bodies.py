"""The records of a body of JSON: of a document, of lines, or in an envelope of Amazon SNS.

AWS posts one `s3:TestEvent`, which is no record, when it is set up to post here. It is accepted, and nothing is stored.
SNS posts either of them as it is, or as a text within an envelope, which is opened; its signature is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from typing import NoReturn

from remora.codec.json_pieces import (
    WINDOW,
    JsonCursor,
    NotJson,
    Repeating,
    Steps,
    TooLarge,
    is_short,
    not_json,
    parse,
)
from remora.codec.s3_records import TWICE, Found, MalformedEvent, Unconfirmed, kind_of

MOST_MEMBERS = 1024
"""Members of a long document, beside Records."""


class TestEvent:
    """An `s3:TestEvent`, in place of a record."""


Records = Generator[Found | TestEvent | None, None, None]
"""Yields records, and None every few milliseconds so that the caller can yield to the loop."""


def in_lines(lines: Iterable[bytes], record: int = 0, line: int = 1, *, window: int = WINDOW) -> Records:
    """The records of every line, counted on from these numbers; empty lines are passed over.

    A line is a record, or a document with Records. Those that are longer than the window are read in steps.
    """
    for number, text in enumerate(lines, line):
        if not text or text.isspace():
            continue
        for each in _in_line(text, record, number, window):
            record += isinstance(each, Found)
            yield each


def _in_line(text: bytes, record: int, line: int, window: int) -> Records:
    try:
        value = _json(text, record, line) if is_short(text, window) else (yield from _whole(text, window))
    except TooLarge as exc:  # for one record, not for a document
        try:
            yield from _in_long_document(text, record, line, window)
        except _NoDocument:
            raise MalformedEvent(record, line, "", str(exc)) from exc
        return
    except NotJson as exc:
        raise MalformedEvent(record, line, "", str(exc)) from exc
    if isinstance(value, dict) and "Records" in value:
        yield from _records(value, record, line, len(text))
    elif _is_test(value):
        yield TestEvent()
    elif (message := _message_of(value, line)) is not None:
        yield from _in_message(message, record, line, window)
    else:
        yield Found(value, record, line, len(text))


def in_document(body: bytes, record: int = 0, at: int = 0, *, window: int = WINDOW) -> Records:
    """The records of `{"Records":[...]}`. One that is longer than the window is read in steps.

    It may be read on from a record within, which has this number and begins at this byte.
    """
    if at:
        yield from _in_long_document(body, record, None, window, at)
        return
    value = yield from _records_or_value(body, record, None, window)
    if (message := _message_of(value, None)) is not None:
        yield from _in_message(message, record, None, window)
    elif value is not _TAKEN:
        _refuse_document(value, None)


_TAKEN: object = object()
"""In place of a value that was taken already."""


def _records_or_value(
    text: bytes, record: int, line: int | None, window: int
) -> Generator[Found | TestEvent | None, None, object]:
    """Yields the records of a document, or a test event; gives the value that is neither, else `_TAKEN`."""
    if is_short(text, window):
        value = _json(text, None, line)
        if isinstance(value, dict) and "Records" in value:
            yield from _records(value, record, line, len(text))
            return _TAKEN
    else:
        try:
            yield from _in_long_document(text, record, line, window)
        except _NoDocument as exc:
            if exc.field != "Records":
                raise
            try:
                value = yield from _whole(text, window)
            except NotJson:
                raise exc from None
        else:
            return _TAKEN
    if _is_test(value):
        yield TestEvent()
        return _TAKEN
    return value


def _refuse_document(value: object, line: int | None) -> NoReturn:
    if not isinstance(value, dict):
        raise MalformedEvent(None, line, "", f"expected an object with Records, not {kind_of(value)}")
    raise MalformedEvent(None, line, "Records", "is missing")


def _records(document: dict[str, object], first: int, line: int | None, size: int) -> Iterator[Found]:
    records = document["Records"]
    if isinstance(document, Repeating):
        raise MalformedEvent(None, line, document.name, TWICE)
    if not isinstance(records, list):
        raise MalformedEvent(None, line, "Records", f"expected a list, not {kind_of(records)}")
    if not records:
        raise MalformedEvent(None, line, "Records", "is empty")
    return (Found(each, first + i, line, size // len(records)) for i, each in enumerate(records))


def _is_test(value: object) -> bool:
    return isinstance(value, dict) and value.get("Event") == "s3:TestEvent" and "Records" not in value


# ------------------------------------------------------------------------------------ envelopes of Amazon SNS

_HANDSHAKES = ("SubscriptionConfirmation", "UnsubscribeConfirmation")
_CONFIRMS = re.compile(r"https://sns\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/[!-~]{1,2000}")


def _message_of(value: object, line: int | None) -> str | None:
    """The text in an envelope; None where it is none. Raises MalformedEvent for what SNS posts beside notifications."""
    if not isinstance(value, dict) or "Message" not in value or "Records" in value:
        return None
    kind, message = value.get("Type"), value["Message"]
    if kind != "Notification" and kind not in _HANDSHAKES:
        return None
    if isinstance(value, Repeating):
        raise MalformedEvent(None, line, value.name, TWICE)
    if kind in _HANDSHAKES:
        url = value.get("SubscribeURL")
        hint = f"; {url} confirms the subscription" if isinstance(url, str) and _CONFIRMS.fullmatch(url) else ""
        raise Unconfirmed(None, line, "Type", f"is an SNS {kind}, which is left to the operator{hint}")
    if not isinstance(message, str):
        raise MalformedEvent(None, line, "Message", f"expected a string, not {kind_of(message)}")
    return message


def _in_message(message: str, record: int, line: int | None, window: int) -> Records:
    """The records in the text of an envelope. A fault of the text as a whole names the field `Message`."""
    try:
        value = yield from _records_or_value(message.encode(), record, line, window)
        if value is not _TAKEN:
            _refuse_document(value, line)
    except UnicodeEncodeError as exc:
        raise MalformedEvent(None, line, "Message", "has half of a surrogate pair") from exc
    except MalformedEvent as exc:
        if exc.record is not None:
            raise
        raise MalformedEvent(None, line, ".".join(filter(None, ("Message", exc.field))), exc.reason) from exc


def _json(text: bytes, record: int | None, line: int | None) -> object:
    try:
        return parse(text)
    except NotJson as exc:
        raise MalformedEvent(record, line, "", str(exc)) from exc


# ---------------------------------------------------------------------------------- long texts, in steps


class _NoDocument(MalformedEvent):
    """What has no Records, and may be a record itself."""


def _whole(text: bytes, window: int) -> Steps[object]:
    """The value that a text is. Raises NotJson."""
    try:
        cursor = JsonCursor(text, window=window)
        value = yield from cursor.value()
        yield from cursor.expect_end()
    except (ValueError, RecursionError) as exc:
        raise not_json(exc) from exc
    return value


def _in_long_document(body: bytes, record: int, line: int | None, window: int, at: int = 0) -> Records:
    try:
        cursor = JsonCursor(body, at, window=window)
        yield from _in_object(cursor, record, line, is_within=at > 0)
    except MalformedEvent:
        raise
    except (ValueError, RecursionError) as exc:
        raise MalformedEvent(None if line is None else record, line, "", str(not_json(exc))) from exc


def _in_object(cursor: JsonCursor, record: int, line: int | None, *, is_within: bool) -> Records:
    """The records of the document that the cursor stands before, or stands in, before a record."""
    names: set[str] = set()
    if is_within:
        names.add("Records")
        yield from _in_list(cursor, record, line)
        more = yield from cursor.goes_on("}")
    elif (yield from cursor.mark()) == "{":
        more = yield from cursor.begins("}")
    else:
        value = yield from cursor.value()
        yield from cursor.expect_end()
        raise _NoDocument(None, line, "", f"expected an object with Records, not {kind_of(value)}")
    while more:
        name = yield from cursor.name()
        if name in names:
            raise MalformedEvent(None, line, name, TWICE)
        names.add(name)
        if len(names) > MOST_MEMBERS:
            raise _NoDocument(None, line, "", f"has more than {MOST_MEMBERS} members")
        if name != "Records":
            yield from cursor.value()
        elif (yield from cursor.mark()) != "[":
            value = yield from cursor.value()
            raise MalformedEvent(None, line, name, f"expected a list, not {kind_of(value)}")
        elif (yield from cursor.begins("]")):
            yield from _in_list(cursor, record, line)
        else:
            raise MalformedEvent(None, line, name, "is empty")
        yield None
        more = yield from cursor.goes_on("}")
    yield from cursor.expect_end()
    if "Records" not in names:
        raise _NoDocument(None, line, "Records", "is missing")


def _in_list(cursor: JsonCursor, record: int, line: int | None) -> Records:
    more = True
    while more:
        try:
            value = yield from cursor.value()
        except TooLarge as exc:
            raise MalformedEvent(record, line, "", str(exc)) from exc
        yield Found(value, record, line, cursor.size)
        record += 1
        more = yield from cursor.goes_on("]")
