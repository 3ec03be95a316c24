"""Reads settings from a parsed file and the environment, and says what a reload would change."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from remora.config.checked import refuse
from remora.config.environment import PREFIX, from_environment, value_of
from remora.config.known import RETIRED, class_of, did_you_mean, elsewhere, options_of, part_of, unit_of
from remora.config.places import line_of, lines_of
from remora.config.settings import LIVE, Settings
from remora.config.units import option_key, show_size, toml_name
from remora.model.errors import ConfigError, ConfigUnreadable

DEFAULT_FILE = Path("/etc/remora/remora.toml")

BUILT_IN = "built-in"
"""How a configuration is named that is read from no file."""

MOST_BYTES = 1 << 20
"""A configuration file beyond this size is a mistake and is not read."""


def file_of(given: Path | None) -> Path | None:
    """The file to read: one that was given must be there, the default one need not, and None stands for its absence.

    Commands, the daemon's start and its reloads all ask this anew, so a default file may come and go.
    """
    if given is not None:
        return given
    try:
        DEFAULT_FILE.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # it may be there, and reading it says what is wrong
    return DEFAULT_FILE


class Loaded(NamedTuple):
    """Settings, and what to say of options that the file or the environment has and that are none any longer."""

    settings: Settings
    retired: list[str]


def loaded(path: Path | str | None, environment: Mapping[str, str] = MappingProxyType({})) -> Loaded:
    """What a file and the environment give; without a file, the environment over the defaults. The file is read once.

    Raises ConfigError with the key and the line of all problems, or with the file where it has none.
    """
    if path is None:
        return Loaded(from_document({}, environment), _retired({}, environment))
    file = read_toml(path, MOST_BYTES, "configuration file")
    try:
        return Loaded(from_document(file.content, environment), _retired(file.content, environment))
    except ConfigError as exc:
        refuse(_placed(exc.problems, path, file, environment))
        raise


def load(path: Path | str | None, environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings alone, as `loaded` finds them."""
    return loaded(path, environment).settings


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
        kind = ConfigUnreadable if isinstance(exc, PermissionError) else ConfigError
        raise kind("", f"cannot read {path}: {exc.strerror}") from exc
    if len(raw) > most_bytes:
        raise ConfigError("", f"{path} is larger than {show_size(most_bytes)}: not a {what}")
    try:
        text = raw.decode("utf-8-sig")  # editors of Windows begin a file with a mark
        return TomlFile(text, tomllib.loads(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError("", f"{path} is not TOML: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError("", f"{path} is not TOML that can be read: nested too deeply") from exc
    except ValueError as exc:  # Python reads no numbers of thousands of digits
        raise ConfigError("", f"{path} is not TOML that can be read: a number has too many digits") from exc


def _placed(
    problems: Iterable[ConfigError], path: Path | str, file: TomlFile, environment: Mapping[str, str]
) -> Iterator[ConfigError]:
    """The problems with the line of the option that each is about, or the variable that stands over the file.

    A rule that an option breaks with its default has the place of another one that it binds.
    """
    lines, named = lines_of(file.text), from_environment(environment)
    variables = {key: variable for variable, key in named.items()}
    for each in problems:
        key = next((key for key in (each.key, *each.binds) if _variable_of(key, variables) or key in lines), each.key)
        line = line_of(key, lines)
        if variable := _variable_of(key, variables):
            yield each if each.key.startswith(PREFIX) else each.at(f"from {variable}")
        else:
            yield each.at(f"{path}:{line}") if line else each


def _variable_of(key: str, variables: Mapping[str, str]) -> str:
    """The variable that an option comes from, or a part of its tables; empty where it comes from none."""
    return variables.get(".".join(key.split(".")[:2]), "")


def from_document(document: Mapping[str, object], environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings that a parsed file and the environment give; what both leave out has its default.

    Raises ConfigError, with all problems of the file.
    """
    sections = {each.name: each.default_factory for each in fields(Settings)}
    problems: list[ConfigError] = []
    values: dict[str, dict[str, object]] = {}
    for name, table in document.items():
        if name not in sections:
            where = "" if isinstance(table, Mapping) else elsewhere(name, {})
            why = f"stands in no section{where}" if where else f"there is no such section{did_you_mean(name, sections)}"
            problems.append(ConfigError(name, why))
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


def _retired(document: Mapping[str, Mapping[str, object]], environment: Mapping[str, str]) -> list[str]:
    given = [f"{section}.{key}" for section, table in document.items() for key in table]
    found = dict.fromkeys([*given, *from_environment(environment).values()])
    return [f"{key} is no option any longer: {RETIRED[key]}" for key in found if key in RETIRED]


@dataclass(frozen=True, slots=True)
class Changes:
    """Dotted keys whose values differ: those that a reload changes at once, and those that need a restart."""

    live: tuple[str, ...]
    restart: tuple[str, ...]


def changes(old: Settings, new: Settings) -> Changes:
    """What a reload from `old` to `new` would change.

    An option that is live otherwise needs a restart where a rule binds its new value to another one that does.
    """
    used = applied(old, new)
    return Changes(live=_differing(old, used), restart=_differing(used, new))


def _differing(old: Settings, new: Settings) -> tuple[str, ...]:
    """The dotted keys whose values differ."""
    return tuple(
        f"{section.name}.{option_key(option.name)}"
        for section in fields(Settings)
        for option in fields(getattr(old, section.name))
        if getattr(getattr(old, section.name), option.name) != getattr(getattr(new, section.name), option.name)
    )


def applied(old: Settings, new: Settings) -> Settings:
    """The settings of a running daemon after a reload: `new` where that may change, `old` elsewhere.

    Both keep the rules, and what is put together of them need not: then what these rules bind stays `old`, too.
    """
    live = LIVE
    while True:
        try:
            return _mixed(old, new, live)
        except ConfigError as exc:
            bound = {key for each in exc.problems for key in (each.key, *each.binds)}
            bound = {".".join(key.split(".")[:2]) for key in bound} & live  # a rule may be of a table within an option
            if not bound:
                raise
            live -= bound


def _mixed(old: Settings, new: Settings, live: Set[str]) -> Settings:
    """The settings of `new` where they are among `live`, of `old` elsewhere. Raises ConfigError."""
    sections = {
        section.name: replace(
            getattr(old, section.name),
            **{
                option.name: getattr(getattr(new, section.name), option.name)
                for option in fields(getattr(old, section.name))
                if f"{section.name}.{option_key(option.name)}" in live
            },
        )
        for section in fields(Settings)
    }
    return Settings(**sections)


def _values(name: str, cls: Any, table: Mapping[str, object], problems: list[ConfigError]) -> dict[str, object]:
    """The values of a section by their fields' names; what is wrong with the others joins `problems`."""
    known = options_of(cls)
    values: dict[str, object] = {}
    for key, raw in table.items():
        if f"{name}.{key}" in RETIRED:
            continue
        if key not in known:
            problems.append(ConfigError(f"{name}.{key}", f"there is no such option{elsewhere(key, known)}"))
            continue
        field_name, hint = known[key]
        path = f"{name}.{key}"
        try:
            values[field_name] = _setting(path, hint, raw, problems)
        except ValueError as exc:
            problems.append(ConfigError(path, str(exc)))
    return values


def _setting(path: str, hint: Any, raw: object, problems: list[ConfigError]) -> object:
    """The value of an option; what is wrong within its tables joins `problems`. Raises ValueError."""
    if (part := part_of(hint)) is None:
        return _value(hint, raw)
    if get_origin(hint) is tuple:
        return _parts(path, part, raw, problems)
    return _part(path, part, raw, problems)


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


def _override(
    values: dict[str, dict[str, object]], variable: str, key: str, text: str, problems: list[ConfigError]
) -> None:
    """Put the value of an environment variable over that of the file; what is wrong with it joins `problems`."""
    section, _, option = key.partition(".")
    known = options_of(class_of(section))
    if key in RETIRED:
        return
    if option not in known:
        problems.append(ConfigError(variable, f"there is no option {key}{elsewhere(option, known)}"))
        return
    field_name, hint = known[option]
    found: list[ConfigError] = []
    try:
        values.setdefault(section, {})[field_name] = _setting(variable, hint, value_of(hint, text), found)
    except ValueError as exc:
        found.append(ConfigError(variable, str(exc)))
    problems += (ConfigError(each.key, each.reason, binds=(key,)) for each in found)


def _draft(cls: Any, values: Mapping[str, object]) -> Any:
    """Settings of these values, else of the defaults, not checked yet."""
    draft = object.__new__(cls)
    for each in fields(cls):
        default = each.default_factory() if callable(each.default_factory) else each.default
        object.__setattr__(draft, each.name, values.get(each.name, default))
    return draft


def _value(hint: Any, raw: object) -> object:
    if isinstance(raw, str) and not raw.isprintable():
        raise ValueError("control characters are not allowed here")
    if unit := unit_of(hint):
        return unit.read(raw)
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
    if get_origin(hint) is Literal and raw not in (allowed := get_args(hint)):
        raise ValueError(f'"{raw}" is not one of {", ".join(allowed)}{did_you_mean(raw, allowed)}')
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
    # TOML's whole numbers have no end, and those of floats do; the option's own limits refuse what is beyond.
    return {str(name): float(max(min(value, 1e300), -1e300)) for name, value in raw.items()}
