"""Counts what makes daemon and pipeline harder to read, and holds each figure to a number: `python -m devkit.ratchets`.

`devkit/ratchets.toml` has the figures and the lists that they go by. A figure may only fall: one above its number fails
`scripts/check`, and `scripts/check --fix` lowers the numbers of those below.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.paths import ROOT

FILE = ROOT / "devkit/ratchets.toml"
PACKAGES = ("daemon/remora", "pipeline/remora_pipeline")
SHORT = 6
"""The most lines of a function that does little more than name them."""
LONG = 500
"""The most lines of a module."""

LOGGING = frozenset({"say", "log", "_say_seldom", "say_seldom", "debug", "info", "warning", "error", "exception"})
"""What is called with the text of a log message."""

Found = Mapping[str, Collection[str]]
"""For each figure what it counts."""


@dataclass(frozen=True, slots=True)
class Lists:
    """What the figures go by; see the file."""

    nouns: frozenset[str]
    ending: frozenset[str]
    words: Mapping[str, str]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def count(root: Path, lists: Lists) -> Found:
    """What each figure counts in the daemon, the pipeline and the README of a tree."""
    files = sorted(each for package in PACKAGES for each in (root / package).rglob("*.py"))
    trees = {str(each.relative_to(root)): ast.parse(each.read_text()) for each in files}
    classes, functions = _definitions(trees)
    twice = [f"{name}: {', '.join(at)}" for name, at in sorted(classes.items()) if len(at) > 1]
    everywhere = Counter(name for tree in trees.values() for name in _uses(tree))
    short = [(file, each.name) for file, found in functions.items() for each in found if _is_short(each)]
    mine = {file: Counter(_uses(tree)) for file, tree in trees.items()}
    texts = [("README.md", (root / "README.md").read_text()), *_said(trees)]
    return {
        "class_names_twice": [each for each in twice if each[0] != "_"],
        "private_class_names_twice": [each for each in twice if each[0] == "_"],
        "participle_files": [
            file for file in trees if (stem := Path(file).stem).endswith("ing") and stem not in lists.nouns
        ],
        "private_one_caller": [f"{file}: {name}" for file, name in short if name[0] == "_" and mine[file][name] == 1],
        "public_one_caller": [f"{file}: {name}" for file, name in short if name[0] != "_" and everywhere[name] == 1],
        "ending_verbs": sorted(lists.ending & {each.name for found in functions.values() for each in found}),
        "long_files": [str(each.relative_to(root)) for each in files if each.read_text().count("\n") > LONG],
        "words": [
            f"{where}: {name}: {hit.string[max(0, hit.start() - 40) : hit.end() + 40]}"
            for where, text in texts
            for name, pattern in lists.words.items()
            for hit in re.finditer(pattern, " ".join(text.split()))
        ],
    }


def _definitions(trees: Mapping[str, ast.Module]) -> tuple[Mapping[str, list[str]], Mapping[str, list[Function]]]:
    """The files of each class name, and the functions of each file."""
    classes: dict[str, list[str]] = defaultdict(list)
    functions: dict[str, list[Function]] = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(file)
            elif isinstance(node, Function):
                functions[file].append(node)
    return classes, functions


def _uses(tree: ast.AST) -> Iterator[str]:
    """The names that are read, called or set anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def _is_short(function: Function) -> bool:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    return lines <= SHORT and not function.name.startswith("__")


def _said(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """The text of log messages, and of the help of commands, each with its file."""
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                helps = [each.value for each in node.keywords if each.arg == "help"]
                logged = node.args if _name(node.func) in LOGGING else []
                yield from ((file, text) for text in _strings([*helps, *logged]))
            elif isinstance(node, Function) and "/cli/" in file and _is_command(node):
                yield file, ast.get_docstring(node) or ""


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def _is_command(function: Function) -> bool:
    decorators = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return any(_name(each) in {"command", "group"} for each in decorators)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def read(file: Path = FILE) -> tuple[dict[str, int], Lists]:
    """The most that each figure may be, and the lists."""
    document: dict[str, Any] = tomllib.loads(file.read_text())
    lists = document["lists"]
    return document["most"], Lists(frozenset(lists["nouns"]), frozenset(lists["ending"]), document["words"])


def lower(figures: Mapping[str, int], file: Path = FILE) -> None:
    """Write the figures that are below their numbers."""
    text = file.read_text()
    most, _ = read(file)
    for name, figure in figures.items():
        if figure < most[name]:
            text = re.sub(rf"^{name} = \d+$", f"{name} = {figure}", text, flags=re.MULTILINE)
    file.write_text(text)


def raised(found: Found, most: Mapping[str, int]) -> list[str]:
    """A line for each figure above its number."""
    return [
        f"{name} is {len(each)}, and may be {most[name]} (devkit/ratchets.toml):"
        f" python -m devkit.ratchets --show {name} lists them"
        for name, each in found.items()
        if len(each) > most[name]
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Count what makes daemon and pipeline harder to read.")
    parser.add_argument("--fix", action="store_true", help="lower the numbers of the figures that have fallen")
    parser.add_argument("--show", metavar="FIGURE", help="list what a figure counts")
    options = parser.parse_args()
    most, lists = read()
    found = count(ROOT, lists)
    if options.show:
        sys.stdout.writelines(f"{each}\n" for each in found[options.show])
        return 0
    if options.fix:
        lower({name: len(each) for name, each in found.items()})
    problems = raised(found, most)
    sys.stderr.writelines(f"{each}\n" for each in problems)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
