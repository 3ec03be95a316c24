"""Reads the tree as a graph: which file imports which, and which tests take which fixtures.

One parser reads the daemon, the pipeline, the tests, `devkit` and `scripts`, so that a chain of imports runs through
all of them. Nothing is imported for it: a module that does not even compile has importers, too.
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOTS = ("daemon", "pipeline", "tests", "")
"""Folders from which modules are imported, as pyproject.toml and the programs in `scripts` have them."""

SKIPPED = frozenset({".git", ".venv", "__pycache__", "node_modules", "build", "dist"})

PROGRAM = re.compile(r"#!.*python")


@dataclass(frozen=True, slots=True)
class Fixture:
    """A pytest fixture: the files that it uses, and the fixtures that it takes."""

    uses: frozenset[str]
    takes: frozenset[str]
    is_autouse: bool


@dataclass(slots=True)
class Parsed:
    """What one file says of others; `names` maps each name that it imports to the file behind it."""

    imports: set[str] = field(default_factory=set)
    lazily: set[str] = field(default_factory=set)
    """Modules that the file loads by their names."""
    names: dict[str, str] = field(default_factory=dict)
    fixtures: dict[str, Fixture] = field(default_factory=dict)
    arguments: set[str] = field(default_factory=set)
    """Arguments of its tests, and what `usefixtures` names: fixtures, for all that one can see."""


class Tree:
    """The files below a folder. `gone` are files that were deleted, and still are what others import."""

    def __init__(self, root: Path, gone: frozenset[str] = frozenset()) -> None:
        self._root = root
        self.files = sorted({*_walk(root), *gone})
        self._modules = {name: file for file in self.files for name in module_names(file)}
        self._texts: dict[str, str] = {}

    def text(self, file: str) -> str:
        """The text of a file; empty where there is none that can be read."""
        if file not in self._texts:
            try:
                self._texts[file] = (self._root / file).read_text()
            except (OSError, UnicodeDecodeError):
                self._texts[file] = ""
        return self._texts[file]

    def is_code(self, file: str) -> bool:
        """Whether imports can be read from a file: a module, a Cython module, or a program in Python."""
        if file.endswith((".py", ".pyx")):
            return True
        return file.startswith("scripts/") and "." not in Path(file).name and bool(PROGRAM.match(self.text(file)))

    @property
    def tests(self) -> list[str]:
        """The test files."""
        return [file for file in self.files if is_test(file)]

    @cached_property
    def parsed(self) -> dict[str, Parsed]:
        """Each file of code with what it says."""
        return {file: self._parse(file) for file in self.files if self.is_code(file)}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Each file with those that import it; tests import what their fixtures use."""
        found: dict[str, set[str]] = defaultdict(set)
        for file, parsed in self.parsed.items():
            for each in parsed.imports | self._through_fixtures(file):
                found[each].add(file)
        for file in self.files:
            if file.startswith(("tests/", "devkit/")) and self.is_code(file):
                for program in self._programs(file):
                    found[program].add(file)
        return found

    @cached_property
    def loaders(self) -> dict[str, set[str]]:
        """Each file with those that load it by its name."""
        found: dict[str, set[str]] = defaultdict(set)
        for file, parsed in self.parsed.items():
            for each in parsed.lazily:
                found[each].add(file)
        return found

    def _programs(self, file: str) -> Iterator[str]:
        """The programs of `scripts` in Python that a file names."""
        text = self.text(file)
        for program in self._python_programs:
            if re.search(
                rf"\bscripts/{re.escape(Path(program).name)}\b|[\"']{re.escape(Path(program).name)}[\"']", text
            ):
                yield program

    @cached_property
    def _python_programs(self) -> list[str]:
        return [file for file in self.files if file.startswith("scripts/") and "." not in file and self.is_code(file)]

    def _through_fixtures(self, file: str) -> set[str]:
        """The files that define, or are used by, the fixtures that a file of tests takes."""
        if not is_test(file):
            return set()
        places = [self.parsed[file], *(self.parsed[each] for each in self._conftests(file))]
        autouse = {name for place in places for name, fixture in place.fixtures.items() if fixture.is_autouse}
        waiting, seen = self.parsed[file].arguments | autouse, set[str]()
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for place in places:
                defined = place.names.get(name)
                fixture = (
                    self.parsed[defined].fixtures.get(name) if defined in self.parsed else place.fixtures.get(name)
                )
                if fixture is not None:
                    found |= fixture.uses if defined is None else {defined}
                    waiting |= fixture.takes
        return found - {file}

    def _conftests(self, file: str) -> Iterator[str]:
        for folder in Path(file).parents:
            conftest = (folder / "conftest.py").as_posix()
            if conftest in self.parsed:
                yield conftest

    def _parse(self, file: str) -> Parsed:
        if file.endswith(".pyx"):
            return self._parse_cython(file)
        parsed = Parsed()
        try:
            module = ast.parse(self.text(file))
        except SyntaxError:
            return parsed
        nodes = list(_statements(module))
        for node in nodes:
            self._import(parsed, node, file)
        parsed.imports.discard(file)
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._function(parsed, node, file)
        if "import_module(" in self.text(file):
            parsed.lazily |= self._named_siblings(file, module) - {file}
        if "entry_points(" in self.text(file):
            parsed.lazily |= self._offered(module)
        return parsed

    def _import(self, parsed: Parsed, node: ast.AST, file: str) -> None:
        """Note what an import statement names; of `from a import b` that is `a.b` where it is a module, else `a`."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._add(parsed, alias.name, alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, file)
            for alias in node.names:
                name = alias.asname or alias.name
                if not self._add(parsed, f"{module}.{alias.name}", name):
                    self._add(parsed, module, name)

    def _parse_cython(self, file: str) -> Parsed:
        parsed = Parsed()
        for module in re.findall(r"(?m)^\s*(?:from|import|cimport) ([\w.]+)", self.text(file)):
            self._add(parsed, module, module)
        return parsed

    def _add(self, parsed: Parsed, module: str, name: str) -> bool:
        found = self._modules.get(module)
        if found is not None:
            parsed.imports.add(found)
            parsed.names[name] = found
        return found is not None

    def _offered(self, module: ast.Module) -> set[str]:
        """The modules that pyproject.toml files offer in a group of entry points which a text of this file names."""
        found: set[str] = set()
        for each in (each for each in self.files if each.endswith("pyproject.toml")):
            groups = tomllib.loads(self.text(each)).get("project", {}).get("entry-points", {})
            for group in groups.keys() & _texts(module):
                found |= {self._modules[value.partition(":")[0]] for value in groups[group].values()}
        return found

    def _named_siblings(self, file: str, module: ast.Module) -> set[str]:
        """The modules of the same folder that texts of this file name, as `module` or `module:name`."""
        texts = _texts(module)
        siblings = {(Path(file).parent / f"{text.partition(':')[0]}.py").as_posix() for text in texts if text}
        return siblings & set(self._modules.values())

    def _function(self, parsed: Parsed, node: ast.FunctionDef | ast.AsyncFunctionDef, file: str) -> None:
        """Note a fixture, or the arguments of a test."""
        arguments = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        marks = [ast.unparse(each) for each in node.decorator_list]
        fixture = next((mark for mark in marks if re.match(r"(pytest\.|pytest_asyncio\.)?fixture\b", mark)), None)
        if fixture is not None:
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            files = frozenset({parsed.names[name] for name in used & parsed.names.keys()})
            parsed.fixtures[node.name] = Fixture(files, frozenset(arguments), "autouse=True" in fixture)
        elif node.name.startswith("test"):
            parsed.arguments |= arguments
            for mark in marks:
                if "usefixtures" in mark:
                    parsed.arguments |= set(re.findall(r"'(\w+)'", mark))


def _texts(module: ast.Module) -> set[str]:
    """The texts that a module has as constants."""
    constants = (node.value for node in ast.walk(module) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _statements(module: ast.Module) -> Iterator[ast.AST]:
    """All statements of a module, outermost first; their expressions, most of what there is, hold no statement."""
    waiting: deque[ast.AST] = deque([module])
    while waiting:
        node = waiting.popleft()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if isinstance(below := getattr(node, name, None), list):
                waiting.extend(below)


def is_test(file: str) -> bool:
    """Whether a file has tests."""
    return file.startswith("tests/") and Path(file).name.startswith("test_") and file.endswith(".py")


def module_names(file: str) -> list[str]:
    """The names under which a file is imported."""
    path = Path(file)
    if path.suffix not in (".py", ".pyx"):
        return []
    parts = path.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    roots = [Path(root).parts for root in ROOTS]
    return [".".join(parts[len(root) :]) for root in roots if parts[: len(root)] == root and len(parts) > len(root)]


def _absolute(node: ast.ImportFrom, file: str) -> str:
    """The module that a statement names, also where it begins with dots."""
    if not node.level:
        return node.module or ""
    folder = Path(file).parents[node.level - 1].as_posix()
    within = folder.removeprefix("daemon/").removeprefix("pipeline/").replace("/", ".")
    return f"{within}.{node.module}" if node.module else within


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if each not in SKIPPED]
        for file in files:
            yield (Path(folder) / file).relative_to(root).as_posix()
