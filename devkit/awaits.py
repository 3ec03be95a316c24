"""Every `await` of some modules as a place where a test can let an exception happen that nobody foresaw.

The modules are loaded anew from their source, with a call around what each `await`, `async with` and `async for` of
theirs waits for. So a place that is added to the code is one here without anybody's doing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

SHARD: ContextVar[str] = ContextVar("SHARD", default="")
"""The queue that the present task serves; tasks that it starts inherit it."""

NAMES = ("_awaits_wait", "_awaits_enter", "_awaits_each")


class Awaits:
    """Knows the places, `<module>.<function> <number>`, and lets one of them fail for one shard."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.passed: dict[str, Counter[str]] = {}
        self.hits = 0
        self._place = self._shard = ""
        self._failure: Callable[[], Exception] = RuntimeError
        self._left = 0

    def arm(self, place: str, shard: str, failure: Callable[[], Exception], times: int = 1) -> None:
        """Let this place fail so often for this shard."""
        self._place, self._shard, self._failure, self._left, self.hits = place, shard, failure, times, 0

    def check(self, place: str) -> None:
        """Called before each wait."""
        shard = SHARD.get()
        self.passed.setdefault(shard, Counter())[place] += 1
        if place == self._place and shard == self._shard and self._left:
            self._left -= 1
            self.hits += 1
            raise self._failure()

    async def wait(self, place: str, waited: Any) -> Any:
        """Stands for `await waited`."""
        try:
            self.check(place)
        except Exception:
            _close(waited)
            raise
        return await waited

    @contextlib.asynccontextmanager
    async def enter(self, place: str, context: Any) -> Any:
        """Stands for the context of `async with`."""
        self.check(place)
        async with context as entered:
            yield entered

    async def each(self, place: str, items: Any) -> Any:
        """Stands for the items of `async for`."""
        self.check(place)
        async for item in items:
            yield item


def _close(waited: Any) -> None:
    """End a coroutine that was not begun, and those that it was given."""
    if inspect.iscoroutine(waited) and waited.cr_frame is not None:
        for value in list(waited.cr_frame.f_locals.values()):
            for each in value if isinstance(value, list | tuple) else [value]:
                _close(each)
        waited.close()


class _Marker(ast.NodeTransformer):
    def __init__(self, module: str, places: list[str]) -> None:
        self._path = [module.removeprefix("remora.")]
        self._counts: Counter[str] = Counter()
        self._places = places

    def _within(self, node: Any) -> Any:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()
        return node

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _within  # noqa: N815  # as ast names them

    def _call(self, name: str, value: ast.expr) -> ast.Call:
        where = ".".join(self._path)
        self._counts[where] += 1
        place = f"{where} {self._counts[where]}"
        self._places.append(place)
        called = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(place), value], [])
        return ast.fix_missing_locations(ast.copy_location(called, value))

    def visit_Await(self, node: ast.Await) -> ast.Await:
        self.generic_visit(node)
        node.value = self._call(NAMES[0], node.value)
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AsyncWith:
        self.generic_visit(node)
        for item in node.items:
            if ast.unparse(item.context_expr).startswith(("asyncio.TaskGroup(", "asyncio.timeout")):
                continue  # entering these waits for nothing
            item.context_expr = self._call(NAMES[1], item.context_expr)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        if node.is_async:
            node.iter = self._call(NAMES[2], node.iter)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AsyncFor:
        self.generic_visit(node)
        node.iter = self._call(NAMES[2], node.iter)
        return node


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, awaits: Awaits) -> None:
        super().__init__(name, path)
        self._awaits = awaits

    def get_code(self, fullname: str) -> Any:
        tree = ast.parse(self.get_data(self.path), self.path)
        return compile(_Marker(fullname, self._awaits.places).visit(tree), self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        calls = (self._awaits.wait, self._awaits.enter, self._awaits.each)
        vars(module).update(zip(NAMES, calls, strict=True))
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, packages: tuple[str, ...], awaits: Awaits) -> None:
        self._packages = packages
        self._awaits = awaits

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if _is_among(name, self._packages) else None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            spec.loader = _Loader(name, spec.origin, self._awaits)
        return spec


def _is_among(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)


@contextlib.contextmanager
def loaded_with_places(*packages: str) -> Iterator[Awaits]:
    """While the block runs, importing from these packages gives modules of their own, whose places are known."""
    awaits = Awaits()
    finder = _Finder(packages, awaits)
    for each in packages:
        importlib.import_module(each)
    before = {name: module for name, module in sys.modules.items() if _is_among(name, packages)}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        for each in packages:
            importlib.import_module(each)
        yield awaits
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_among(name, packages)]:
            del sys.modules[name]
        sys.modules.update(before)
        for each in packages:  # importing has set this, too
            parent, _, own = each.rpartition(".")
            setattr(sys.modules[parent], own, sys.modules[each])
