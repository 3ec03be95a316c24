"""Where the keys of a TOML file stand, for refusals.

tomllib tells no positions. Weighed: tomlkit, which keeps none either; tree-sitter and its grammar of TOML, two compiled
packages for the line of a mistake. So tomllib itself takes the file apart: from each line on, the fewest lines that it
reads are one expression, a header or a key with its value.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

MOST_LINES = 500
"""Of one expression: where more are not enough, the lines of what comes then are not known."""

Path = tuple[str | int, ...]
"""Names of tables and keys, and places in arrays."""


def lines_of(text: str) -> dict[str, int]:
    """The line of each dotted key and table of a valid file, from 1; an element of an array goes by its `name`, if it
    has one, else by its place, as in refusals. Keys within a value of several lines have the line where it begins. Of
    elements with the same name it is the last one's."""
    document = tomllib.loads(text)
    found: dict[Path, int] = {}
    table: Path = ()
    last: dict[Path, int] = {}
    for line, begin, content in _expressions(text):
        if begin.startswith("["):
            table = _header(content, last, is_array=begin.startswith("[["))
            _note(found, table, line)
        else:
            for path in _keys(content):
                _note(found, table + path, line)
    return {_dotted(path, document): line for path, line in found.items()}


def line_of(key: str, lines: Mapping[str, int]) -> int:
    """The line of a key, else of the nearest table around it; 0 where none is known."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key, 0)


def _expressions(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """The first line of each expression, what it begins with, and what it says by itself."""
    lines = text.replace("\r\n", "\n").split("\n")
    first = 0
    while first < len(lines):
        for end in range(first + 1, min(first + MOST_LINES, len(lines)) + 1):
            try:
                content = tomllib.loads("\n".join(lines[first:end]))
            except tomllib.TOMLDecodeError:
                continue
            yield first + 1, lines[first].lstrip(" \t"), content
            break
        else:
            return
        first = end


def _header(content: Mapping[str, Any], last: dict[Path, int], *, is_array: bool) -> Path:
    """The path of a header's table; `last` has the last place of each array of tables, and gets that of a new one."""
    names = next(path for path in reversed([*_keys(content)]) if isinstance(path[-1], str))
    path: Path = ()
    for number, name in enumerate(names, 1):
        path += (name,)
        if is_array and number == len(names):
            last[path] = last.get(path, -1) + 1
        if path in last:
            path += (last[path],)
    return path


def _keys(value: object, path: Path = ()) -> Iterator[Path]:
    """The paths of all keys and elements of tables in a value, each before those within."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        if isinstance(value, dict) or isinstance(each, dict):
            yield (*path, key)
            yield from _keys(each, (*path, key))


def _note(found: dict[Path, int], path: Path, line: int) -> None:
    for length in range(1, len(path) + 1):
        found.setdefault(path[:length], line)


def _dotted(path: Path, document: object) -> str:
    names = []
    for step in path:
        document = document[step]  # type: ignore[index]  # a table or an array: the path is one of the document
        name = document.get("name") if isinstance(step, int) and isinstance(document, dict) else None
        names.append(name if isinstance(name, str) and name else str(step))
    return ".".join(names)
