"""Objects of JSON in a text, however it is laid out: one on each line, several on one, each over many lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from remora_pipeline.replay.prepare.entry import FoundLine, Outcome, is_malformed, malformed
from remora_pipeline.replay.prepare.lines import BLANK, TOO_LONG, is_blank

MOST_LINES = 100_000
"""An object that is not closed after these lines is none."""

_MARK = re.compile(r'["{}]|\\.', re.DOTALL)
_BETWEEN = re.compile(r"[\s,\[\]]*")
_BEGIN = re.compile(r'\{"')
_MOST_TRIED, _MOST_LOOKED_AT = 16, 1 << 20
_NO_OBJECT = malformed("not an object of JSON")

Parse = Callable[[str], Sequence[Outcome]]


def objects(lines: Iterable[tuple[int, str | None]], parse: Parse) -> Iterator[FoundLine]:
    """What `parse` makes of each object, found at the line that it begins at.

    A line that `parse` takes whole is never looked into. An object that is not closed ends where such a line begins:
    so does a log whose writer was killed within a line.
    """
    part = _Part()
    for line, text in lines:
        outcomes = _of_line(text, parse, is_within=bool(part.lines))
        if outcomes is not None:
            yield from part.given_up(parse)
            yield FoundLine(line, outcomes, text or "")
            continue
        part.add(line, text or "")
        if not part.is_open:
            yield part.found(parse)
        elif len(part.lines) >= MOST_LINES:
            yield from part.given_up(parse)
    yield from part.given_up(parse)


def _of_line(text: str | None, parse: Parse, *, is_within: bool) -> Sequence[Outcome] | None:
    """What a line says by itself; None for one that must be looked into. Within an object only an object is whole."""
    if text is None:
        return (TOO_LONG,)
    if is_blank(text):
        return None if is_within else (BLANK,)
    if is_within and not text.startswith("{"):
        return None
    outcomes = parse(text)
    return None if any(map(is_malformed, outcomes)) else outcomes


class _Part:
    """Lines that belong together, and the objects that are whole in them."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self._whole: list[str] = []
        self._begun: list[str] = []
        self._depth = 0
        self._is_in_text = False
        self._has_other = False

    @property
    def is_open(self) -> bool:
        """Whether an object is not closed yet."""
        return self._depth > 0

    def add(self, line: int, text: str) -> None:
        self.lines.append((line, text))
        start = end = 0
        for mark in _MARK.finditer(text):
            if self._is_in_text:
                self._is_in_text = mark[0] != '"'
            elif mark[0] == '"':
                self._is_in_text = self._depth > 0
            elif mark[0] == "{":
                if self._depth == 0:
                    start = mark.start()
                    self._look_between(text[end:start])
                self._depth += 1
            elif mark[0] == "}" and self._depth > 0:
                self._depth -= 1
                if self._depth == 0:
                    end = mark.end()
                    self._whole.append("\n".join([*self._begun, text[start:end]]))
                    self._begun, start = [], end
        if self._depth > 0:
            self._begun.append(text[start:])
        else:
            self._look_between(text[end:])

    def _look_between(self, text: str) -> None:
        self._has_other = self._has_other or _BETWEEN.fullmatch(text) is None

    def outcomes(self, parse: Parse) -> list[Outcome]:
        """What the objects say that are whole."""
        return [outcome for each in self._whole for outcome in parse(each)]

    def found(self, parse: Parse) -> FoundLine:
        """What all objects say; then it begins anew."""
        line, text = self.lines[0][0], "\n".join(text for _, text in self.lines)
        outcomes = self.outcomes(parse)
        if self._has_other or not self._whole:
            # One that `parse` knows better: it has the reason of its format.
            outcomes += parse(text) if len(self.lines) == 1 and not self._whole else [_NO_OBJECT]
        self.__init__()  # type: ignore[misc]  # nothing is left of what was
        return FoundLine(line, outcomes, text)

    def given_up(self, parse: Parse) -> Iterator[FoundLine]:
        """The objects that are whole, and each of the lines as none of an object; then it begins anew."""
        whole = self.outcomes(parse)
        begun = len(self.lines[0][1]) - len(self._begun[0]) if len(self.lines) == 1 and self._begun else 0
        for line, text in self.lines:
            behind = _behind_cut(text[begun:], parse)
            yield FoundLine(line, (*whole, BLANK if is_blank(text) else _NO_OBJECT, *behind), text)
            whole, begun = [], 0
        self.__init__()  # type: ignore[misc]  # nothing is left of what was


def _behind_cut(text: str, parse: Parse) -> Sequence[Outcome]:
    """What the objects say that stand behind one that was cut: so goes on a log whose writer was killed."""
    for begin in islice(_BEGIN.finditer(text[:_MOST_LOOKED_AT], 1), _MOST_TRIED):
        part = _Part()
        part.add(0, text[begin.start() : begin.start() + _MOST_LOOKED_AT])
        outcomes = part.outcomes(parse)
        if outcomes and not any(map(is_malformed, outcomes)):
            return outcomes
    return ()
