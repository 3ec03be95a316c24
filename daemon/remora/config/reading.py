"""Reads settings from a parsed file and the environment, and says what a reload would change."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from remora.config.checked import refuse
from remora.config.places import line_of, lines_of
from remora.config.settings import LIVE, Settings
from remora.config.units import Unit, option_key, show_size, toml_name
from remora.model.errors import ConfigError

MOST_BYTES = 1 << 20
"""A configuration file beyond this size is a mistake and is not read."""

PREFIX = "REMORA_"
"""`REMORA_<SECTION>_<OPTION>` in the environment stands over an option of the file."""


def load(path: Path | str | None, environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings that a file and the environment give; without a file, the environment over the defaults.

    Raises ConfigError with the key and the line of all problems, or with the file where it has none.
    """
    if path is None:
        return from_document({}, environment)
    file = read_toml(path, MOST_BYTES, "configuration file")
    try:
        return from_document(file.content, environment)
    except ConfigError as exc:
        refuse(_placed(exc.problems, path, file, environment))
        raise


@dataclass(frozen=True)
class TomlFile:
    """A file's text, and what it says."""

    text: str
    content: dict[str, Any]


def read_toml(path: Path | str, most_bytes: int, what: str) -> TomlFile:
    """Read a TOML file. Raises ConfigError with the file where it is none, or too large for `what` it is to be."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as exc:
        raise ConfigError("", f"cannot read {path}: {exc.strerror}") from exc
    if len(raw) > most_bytes:
        raise ConfigError("", f"{path} is larger than {show_size(most_bytes)}: not a {what}")
    try:
        text = raw.decode()
        return TomlFile(text, tomllib.loads(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError("", f"{path} is not TOML: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError("", f"{path} is not TOML that can be read: nested too deeply") from exc


def _placed(
    problems: Iterable[ConfigError], path: Path | str, file: TomlFile, environment: Mapping[str, str]
) -> Iterator[ConfigError]:
    """The problems with the line of the option that each is about, or the variable that stands over the file.

    A rule that an option breaks with its default has the place of another one that it binds.
    """
    lines, named = lines_of(file.text), from_environment(environment)
    variables = {key: variable for variable, key in named.items()}
    for each in problems:
        key = next((key for key in (each.key, *each.binds) if key in variables or key in lines), each.key)
        line = line_of(key, lines)
        if key in variables:
            yield each if each.key in named else each.at(f"from {variables[key]}")
        else:
            yield each.at(f"{path}:{line}") if line else each


def from_document(document: Mapping[str, object], environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings that a parsed file and the environment give; what both leave out has its default.

    Raises ConfigError, with all problems of the file.
    """
    sections = {each.name: each.default_factory for each in fields(Settings)}
    problems: list[ConfigError] = []
    values: dict[str, dict[str, object]] = {}
    for name, table in document.items():
        if name not in sections:
            problems.append(ConfigError(name, f"there is no such section{_did_you_mean(name, sections)}"))
        elif not isinstance(table, Mapping):
            problems.append(ConfigError(name, f"expected a section [{name}], not {toml_name(table)}"))
        else:
            values[name] = _values(name, sections[name], table, problems)
    for variable, key in from_environment(environment).items():
        _override(values, variable, key, environment[variable], problems)
    drafts = {name: _draft(sections[name], each) for name, each in values.items()}
    draft: Settings = _draft(Settings, drafts)
    wrong = {key for each in problems for key in (each.key, *each.binds)}
    for part in (*drafts.values(), draft):  # a rule says nothing of an option whose value is not known
        problems += (each for each in part.problems() if wrong.isdisjoint((each.key, *each.binds)))
    refuse(problems)
    return draft


def options() -> Iterator[tuple[str, object]]:
    """The dotted key and default of every option, as the file has them: durations and sizes are text."""
    defaults = Settings()
    for section in fields(Settings):
        part = getattr(defaults, section.name)
        for key, (name, hint) in _options_of(part.__class__).items():
            value = getattr(part, name)
            unit = _unit(hint)
            shown = list(value) if isinstance(value, tuple) else value
            yield f"{section.name}.{key}", unit.show(value) if unit and unit.kind != "count" else shown


@dataclass(frozen=True, slots=True)
class Changes:
    """Dotted keys whose values differ: those that a reload changes at once, and those that need a restart."""

    live: tuple[str, ...]
    restart: tuple[str, ...]


def changes(old: Settings, new: Settings) -> Changes:
    """What a reload from `old` to `new` would change."""
    differing = [
        f"{section.name}.{option_key(option.name)}"
        for section in fields(Settings)
        for option in fields(getattr(old, section.name))
        if getattr(getattr(old, section.name), option.name) != getattr(getattr(new, section.name), option.name)
    ]
    return Changes(
        live=tuple(key for key in differing if key in LIVE),
        restart=tuple(key for key in differing if key not in LIVE),
    )


def applied(old: Settings, new: Settings) -> Settings:
    """The settings of a running daemon after a reload: `new` where that may change, `old` elsewhere."""
    sections = {
        section.name: replace(
            getattr(old, section.name),
            **{
                option.name: getattr(getattr(new, section.name), option.name)
                for option in fields(getattr(old, section.name))
                if f"{section.name}.{option_key(option.name)}" in LIVE
            },
        )
        for section in fields(Settings)
    }
    return Settings(**sections)


def _values(name: str, cls: Any, table: Mapping[str, object], problems: list[ConfigError]) -> dict[str, object]:
    """The values of a section by their fields' names; what is wrong with the others joins `problems`."""
    known = _options_of(cls)
    values: dict[str, object] = {}
    for key, raw in table.items():
        if key not in known:
            problems.append(ConfigError(f"{name}.{key}", f"there is no such option{_elsewhere(key, known)}"))
            continue
        field_name, hint = known[key]
        path = f"{name}.{key}"
        try:
            if (part := _part_of(hint)) is None:
                values[field_name] = _value(hint, raw)
            elif get_origin(hint) is tuple:
                values[field_name] = _parts(path, part, raw, problems)
            else:
                values[field_name] = _part(path, part, raw, problems)
        except ValueError as exc:
            problems.append(ConfigError(path, str(exc)))
    return values


def _part_of(hint: Any) -> Any:
    """The class of settings that an option has one of, or a list; None for an option with a plain value."""
    return next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)), None)


def _parts(path: str, cls: Any, raw: object, problems: list[ConfigError]) -> tuple[Any, ...]:
    """The settings of tables `[[path]]`, each of which goes by its name in refusals."""
    if not isinstance(raw, list) or not all(isinstance(each, Mapping) for each in raw):
        raise ValueError(f"expected tables [[{path}]], not {toml_name(raw)}")
    names = [each.get("name") for each in raw]
    paths = [f"{path}.{name if isinstance(name, str) and name else place}" for place, name in enumerate(names)]
    found = [_part(each_path, cls, each, problems) for each_path, each in zip(paths, raw, strict=True)]
    return tuple(each for each in found if each is not None)


def _part(path: str, cls: Any, raw: object, problems: list[ConfigError]) -> Any:
    """The settings of a table within a section; None where something is wrong with them, which joins `problems`."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected a table, not {toml_name(raw)}")
    found: list[ConfigError] = []
    values = _values(path, cls, raw, found)
    required = [each for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING]
    found += [
        ConfigError(f"{path}.{option_key(each.name)}", "is missing")
        for each in required
        if option_key(each.name) not in raw
    ]
    problems += found
    return None if found else cls(**values)


_SERVICE_LINK = re.compile(
    r"(?:.*_)?(?:service_host|service_port(?:_.+)?|port_[0-9]{1,5}_(?:tcp|udp|sctp)(?:_(?:addr|port|proto))?)"
)
"""Ends of the names that Kubernetes gives variables of a Service, beside `_PORT`."""


def from_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that stand for an option of a section, with its dotted key, in the order of their names.

    `REMORA_CONFIG` and others whose second word is no section are something else, and so are the variables that
    Kubernetes sets for a Service, unless there is an option of that name.
    """
    sections = {each.name for each in fields(Settings)}
    found = {}
    for variable, text in sorted(environment.items()):
        section, _, option = variable.removeprefix(PREFIX).lower().partition("_")
        if not variable.startswith(PREFIX) or section not in sections or not option:
            continue
        if option in _options_of(_class_of(section)) or not _is_service_link(option, text):
            found[variable] = f"{section}.{option}"
    return found


def _is_service_link(option: str, text: str) -> bool:
    """Whether Kubernetes sets such a variable for a Service, here one whose name begins with `remora-<section>`."""
    is_url = re.match(r"(?:tcp|udp|sctp)://", text) is not None
    return _SERVICE_LINK.fullmatch(option) is not None or (option.split("_")[-1] == "port" and is_url)


def _override(
    values: dict[str, dict[str, object]], variable: str, key: str, text: str, problems: list[ConfigError]
) -> None:
    """Put the value of an environment variable over that of the file; what is wrong with it joins `problems`."""
    section, _, option = key.partition(".")
    known = _options_of(_class_of(section))
    if option not in known:
        problems.append(ConfigError(variable, f"there is no option {key}{_elsewhere(option, known)}"))
        return
    field_name, hint = known[option]
    unit = _unit(hint)
    is_count = unit is not None and unit.kind == "count" and re.fullmatch("-?[0-9]{1,18}", text)
    is_flag = hint is bool and text in ("true", "false")
    raw = int(text) if is_count else text == "true" if is_flag else text
    try:
        values.setdefault(section, {})[field_name] = _value(hint, raw)
    except ValueError as exc:
        problems.append(ConfigError(variable, str(exc), binds=(key,)))


def _class_of(section: str) -> Any:
    return next(each.default_factory for each in fields(Settings) if each.name == section)


def _draft(cls: Any, values: Mapping[str, object]) -> Any:
    """Settings of these values, else of the defaults, not checked yet."""
    draft = object.__new__(cls)
    for each in fields(cls):
        default = each.default_factory() if callable(each.default_factory) else each.default
        object.__setattr__(draft, each.name, values.get(each.name, default))
    return draft


@functools.cache
def _options_of(cls: Any) -> Mapping[str, tuple[str, Any]]:
    """Key of each option, with its field's name and type."""
    hints = get_type_hints(cls, include_extras=True)
    return MappingProxyType({option_key(each.name): (each.name, hints[each.name]) for each in fields(cls)})


def _unit(hint: Any) -> Unit | None:
    """The unit of an option, which may also be one that has no value where it is left out."""
    args = [arg for each in get_args(hint) for arg in (each, *get_args(each))]
    return next((arg for arg in args if isinstance(arg, Unit)), None)


def _value(hint: Any, raw: object) -> object:
    if unit := _unit(hint):
        return unit.read(raw)
    if part := _part_of(hint):
        raise ValueError(f"only the file can have it, as tables, and not one text: {part.__doc__.splitlines()[0]}")
    if get_origin(hint) is tuple:
        return _texts(raw)
    if get_origin(hint) is dict:
        return _numbers(raw)
    if hint is bool:
        if not isinstance(raw, bool):
            raise ValueError(f"expected true or false, not {toml_name(raw)}")
        return raw
    if not isinstance(raw, str):
        raise ValueError(f"expected text in quotes, not {toml_name(raw)}")
    if not raw.isprintable():
        raise ValueError("control characters are not allowed here")
    if get_origin(hint) is Literal and raw not in (allowed := get_args(hint)):
        raise ValueError(f'"{raw}" is not one of {", ".join(allowed)}{_did_you_mean(raw, allowed)}')
    return raw


def _texts(raw: object) -> tuple[str, ...]:
    """A list of texts; one text, as the environment has it, is taken apart at its commas."""
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(each, str) for each in items):
        raise ValueError(f'expected a list such as ["a", "b"], not {toml_name(raw)}')
    if not all(each.isprintable() for each in items):
        raise ValueError("control characters are not allowed here")
    return tuple(filter(None, map(str.strip, items)))


def _numbers(raw: object) -> dict[str, float]:
    """A table of numbers by name."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected a table such as {{ cpu = 1.0 }}, not {toml_name(raw)}")
    for name, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a number for {name}, not {toml_name(value)}")
    return {str(name): float(value) for name, value in raw.items()}


def _elsewhere(key: str, known: Mapping[str, object]) -> str:
    """Where a misplaced option belongs, else the nearest name here."""
    for path, _ in options():
        section, _, option = path.partition(".")
        if option == key:
            return f"; it belongs into [{section}]"
    return _did_you_mean(key, known)


def _did_you_mean(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
