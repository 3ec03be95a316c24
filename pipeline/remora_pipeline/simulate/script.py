"""A script: one document, read whole before it runs, and its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from remora.model.errors import ConfigError
from remora_pipeline.simulate.form import Kind, NoScript, Optional, Twice, joined, members, shown, text, whole

VERSION = 1

MOST_DIGITS = 1000
"""Far more than any number may have; Python reads no more than some thousand."""


class Model(Protocol):
    """One policy that runs: each step of a script calls it."""

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """The result of one step. Raises ConfigError, and changes nothing then, where its values are refused."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a model's scripts look like, and what begins one from its config; that raises ConfigError."""

    config: Kind
    ops: Mapping[str, Kind]
    begin: Callable[[SimpleNamespace], Model]


@dataclass(frozen=True, slots=True)
class Script:
    """A script that is one."""

    model: str
    form: Form
    config: SimpleNamespace
    steps: tuple[tuple[str, SimpleNamespace], ...]


def read(data: bytes) -> Any:
    """The JSON of a file. Raises NoScript."""
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer)
    except (ValueError, RecursionError) as exc:
        raise NoScript("", f"is no JSON: {exc}") from exc


def script_from(value: Any, forms: Mapping[str, Form], path: str = "") -> Script:
    """Check a document against its model's form. Raises NoScript with the path of what is wrong."""
    config = Optional(lambda value, _path: value, {})  # read later: the model says what its config looks like
    outer = members(version=_version, model=text, config=config, steps=_steps)(value, path)
    form = forms.get(outer.model)
    if form is None:
        raise NoScript(joined(path, "model"), f"{shown(outer.model)} is unknown; there are {', '.join(forms)}")
    config = form.config(outer.config, joined(path, "config"))
    steps = tuple(_step(each, form, joined(path, f"steps[{place}]")) for place, each in enumerate(outer.steps))
    return Script(outer.model, form, config, steps)


def line(value: Any) -> str:
    """An answer as one line, the same wherever it was computed."""
    return json.dumps(value, allow_nan=False)  # escaped: names of a script may be no text that can be written


def answer(script: Script) -> dict[str, Any]:
    """Run a script: one result for each step, or why its config is refused."""
    begun: dict[str, Any] = {"version": VERSION, "model": script.model}
    try:
        model = script.form.begin(script.config)
    except ConfigError as exc:
        return {**begun, "refused": str(exc)}
    return {**begun, "results": [_result(model, op, given) for op, given in script.steps]}


def _result(model: Model, op: str, given: SimpleNamespace) -> Any:
    try:
        return _rounded(model.step(op, given))
    except ConfigError as exc:
        return {"refused": str(exc)}


def _step(value: Any, form: Form, path: str) -> tuple[str, SimpleNamespace]:
    if not isinstance(value, dict):
        raise NoScript(path, "must be an object")
    if "op" not in value:
        raise NoScript(f"{path}.op", "is missing")
    op = text(value["op"], f"{path}.op")
    if op not in form.ops:
        raise NoScript(f"{path}.op", f"{shown(op)} is unknown; there are {', '.join(form.ops)}")
    if isinstance(value, Twice):
        raise NoScript(joined(path, value.name), "is there twice")
    given: SimpleNamespace = form.ops[op]({name: each for name, each in value.items() if name != "op"}, path)
    return op, given


def _version(value: Any, path: str) -> int:
    if whole(value, path) != VERSION:
        raise NoScript(path, f"must be {VERSION}")
    return VERSION


def _steps(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise NoScript(path, "must be a list")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    twice = None
    for name, value in pairs:
        twice = name if name in found and twice is None else twice
        found[name] = value
    return found if twice is None else Twice(found, twice)


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _rounded(value: Any) -> Any:
    """Fractions to six decimals, so that equal input gives equal text."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
