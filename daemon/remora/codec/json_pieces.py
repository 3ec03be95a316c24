"""JSON as a sender writes it: parsed whole where it is short, and value by value where it is long.

`json.loads` builds whatever it is given, and nothing else happens meanwhile: sixteen megabytes of `{},{},` are five
million objects, four hundred megabytes and two seconds. So a long text is read by a `JsonCursor`. It parses a window
of the text at a time; what does not fit into a window is measured first, without building anything, and refused where
it has more than `MOST_VALUES` values or `MOST_BYTES` bytes.

Both ways take the same texts and say the same of others: what `json` takes and says. A name that stands twice in an
object makes it a `Repeating`.

Other parsers take the last value of such a name, while a proxy or a person may read the first. What they have parsed is
looked over by `repeated_name`, which `_s3_records.pyx` has once more.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator
from typing import NoReturn, TypeVar

T = TypeVar("T")

WINDOW = 32 << 10
"""Bytes that are parsed in one go, whatever they are: some milliseconds."""

MOST_VALUES = WINDOW
"""Values that one value may consist of: the commas, brackets and braces that it has outside of texts are counted.

As each of those is a byte, only what is longer than a window can have more.
"""

MOST_BYTES = 8 << 20
"""Bytes that one value may have: its texts alone take json tens of milliseconds."""

_SHORT = 4
"""Windows. A text of at most this many is parsed in one go where it has few values: a quarter of the time less."""

Steps = Generator[None, None, T]
"""Work in steps of a few milliseconds, between which others may get their turn."""


class NotJson(ValueError):
    """A text that is not JSON; the message says why, and where."""


class TooLarge(NotJson):
    """A value with more values or bytes than one may have."""


class Repeating(dict[str, object]):
    """An object in which a name stands twice."""

    name = ""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeating = Repeating(found)
    seen: set[str] = set()
    repeating.name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]  # None, which is the point
    return repeating


def _not_json(name: str) -> NoReturn:
    raise NotJson(f"not valid JSON: {name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_not_json)


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]', re.DOTALL)


def repeated_name(text: bytes) -> str | None:
    """Where the first name stands that stands twice in its object, such as `events[3].bucket`; None where none does.

    For what was read by a parser that takes the last value of such a name: the text is JSON.
    """
    names: list[set[str] | None] = []  # of each object that is open, None for a list
    path: list[str | int] = []
    is_name = False
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{":
                names.append(set())
                path.append("")
                is_name = True
            case b"[":
                names.append(None)
                path.append(0)
                is_name = False
            case b"}" | b"]":
                names.pop()
                path.pop()
                is_name = False
            case b"," if isinstance(at := path[-1], int):
                path[-1] = at + 1
            case b",":
                is_name = True
            case mark if is_name and (of_object := names[-1]) is not None:
                path[-1] = name = str(json.loads(mark))
                if name in of_object:
                    return dotted(path)
                of_object.add(name)
                is_name = False
    return None


def dotted(path: list[str | int]) -> str:
    """Names and indexes as messages have them."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")


def is_short(text: bytes, window: int = WINDOW) -> bool:
    """Whether a text may be parsed in one go."""
    length = len(text)
    return length <= window or (
        length <= _SHORT * window and length - len(text.translate(None, b",[{")) < MOST_VALUES * window // WINDOW
    )


def parse(text: bytes) -> object:
    """The value that a short text is. Raises NotJson."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_object, parse_constant=_not_json)
    except (ValueError, RecursionError) as exc:
        raise not_json(exc) from exc


def not_json(exc: ValueError | RecursionError) -> NotJson:
    """What an error of `json`, or of decoding a text, says."""
    match exc:
        case NotJson():
            return exc
        case UnicodeDecodeError():
            return NotJson(f"not valid UTF-8 at byte {exc.start}")
        case json.JSONDecodeError():
            return NotJson(f"not valid JSON: {exc.msg} at character {exc.pos}")
        case RecursionError():
            return NotJson("nested too deeply")
        case _:
            return NotJson(f"not valid JSON: {exc}")


class JsonCursor:
    """A place in a long text of JSON, which moves on mark by mark and value by value.

    All of its methods may raise NotJson, ValueError and RecursionError, which `not_json` makes the first of.
    """

    __slots__ = ("_body", "_end", "_is_last", "_pos", "_start", "_text", "_window", "size")

    def __init__(self, body: bytes, at: int = 0, *, window: int = WINDOW) -> None:
        """Begin at this byte. A `window` is to be larger than a few characters."""
        self._body = body
        self._window = window
        self.size = 0
        """Characters that the last value took."""
        self._fill(at)

    def _fill(self, start: int) -> None:
        """Have the text from this byte on."""
        piece = self._body[start : start + self._window]
        self._is_last = start + len(piece) == len(self._body)
        try:
            self._text, used = codecs.utf_8_decode(piece, "strict", self._is_last)
        except UnicodeDecodeError as exc:
            raise NotJson(f"not valid UTF-8 at byte {start + exc.start}") from exc
        self._start, self._end, self._pos = start, start + used, 0

    def mark(self) -> Steps[str]:
        """The next character that is no blank, which stays the next one; none at the text's end."""
        while True:
            self._pos = _BLANKS.match(self._text, self._pos).end()  # type: ignore[union-attr]  # it always matches
            if self._pos < len(self._text):
                return self._text[self._pos]
            if self._is_last:
                return ""
            self._fill(self._end)
            yield

    def begins(self, close: str) -> Steps[bool]:
        """Step into the object or list that begins here; whether there is anything in it."""
        self._pos += 1
        if (yield from self.mark()) != close:
            return True
        self._pos += 1
        return False

    def goes_on(self, close: str) -> Steps[bool]:
        """Step over the comma behind a value, or out of what it stands in; whether another one follows."""
        mark = yield from self.mark()
        if mark not in (",", close) or not mark:
            raise self._refusal("Expecting ',' delimiter", self._pos)
        self._pos += 1
        return mark == ","

    def name(self) -> Steps[str]:
        """The name of the next member; its value comes next."""
        if (yield from self.mark()) != '"':
            raise self._refusal("Expecting property name enclosed in double quotes", self._pos)
        name = yield from self.value()
        if (yield from self.mark()) != ":":
            raise self._refusal("Expecting ':' delimiter", self._pos)
        self._pos += 1
        return str(name)

    def expect_end(self) -> Steps[None]:
        """There has to be nothing more."""
        if (yield from self.mark()):
            raise self._refusal("Extra data", self._pos)

    def value(self) -> Steps[object]:
        """The value that comes next. Raises TooLarge, too, before such a one is built."""
        yield from self.mark()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._pos)
            except json.JSONDecodeError as exc:
                if self._is_last:
                    raise self._refusal(exc.msg, exc.pos) from None
            else:
                if self._is_last or not _GOES_ON.fullmatch(self._text, end):
                    self.size, self._pos = end - self._pos, end
                    return value
            if not self._pos:
                return (yield from self._long_value())
            self._fill(self._at(self._text, self._pos))  # the window ends within the value
            yield

    def _long_value(self) -> Steps[object]:
        """The value that the window begins with, and that is longer than the window."""
        end = yield from self._measure()
        piece = self._body[self._start : end]
        try:
            text = piece.decode()
        except UnicodeDecodeError as exc:
            raise NotJson(f"not valid UTF-8 at byte {self._start + exc.start}") from exc
        try:
            value, self.size = _DECODER.raw_decode(text)
        except json.JSONDecodeError as exc:
            raise self._refusal(exc.msg, exc.pos) from None
        yield
        self._fill(self._at(text, self.size))
        return value

    def _measure(self) -> Steps[int]:
        """The byte behind the value that the window begins with; or behind all, where it does not end."""
        body, at, depth, values, in_text = self._body, self._start, 0, 1, False
        while at < len(body):
            if values > MOST_VALUES:
                raise TooLarge(f"has more than {MOST_VALUES} values")
            if at - self._start > MOST_BYTES:
                raise TooLarge(f"has more than {MOST_BYTES} bytes")
            yield
            limit = min(at + self._window, len(body))
            while at < limit:
                if in_text:
                    at = _IN_TEXT.match(body, at, limit).end()  # type: ignore[union-attr]  # it always matches
                    if at < limit and body[at] == _QUOTE:
                        at, in_text = at + 1, False
                        if not depth:
                            return at
                        continue
                    if limit == len(body):
                        return limit
                    break  # at the limit, or before a backslash there
                found = _MARK.search(body, at, limit)
                if found is None:
                    at = limit
                    break
                at, mark = found.end(), found[0]
                if mark == b'"':
                    in_text = True
                elif mark in b"[{":
                    depth, values = depth + 1, values + 1
                elif mark == b",":
                    if not depth:
                        return at - 1
                    values += 1
                elif depth <= 1:
                    return at if depth else at - 1
                else:
                    depth -= 1
        return len(body)

    def _at(self, text: str, pos: int) -> int:
        """The byte of a character of a text that the window's start begins."""
        return self._start + (pos if text.isascii() else len(text[:pos].encode()))

    def _refusal(self, reason: str, pos: int) -> NotJson:
        characters = len(self._body[: self._start].decode(errors="replace")) + pos
        return NotJson(f"not valid JSON: {reason} at character {characters}")


_BLANKS = re.compile(r"[ \t\n\r]*")
_MARK = re.compile(rb'["\[\]{},]')
_QUOTE = ord('"')
_GOES_ON = re.compile(r"\.?|[eE][-+]?")
"""What may stand between a number and the end of a window that cuts it; what ends elsewhere has more behind it."""
_IN_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
