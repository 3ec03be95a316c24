"""Options in the environment: `REMORA_<SECTION>_<OPTION>` stands over an option of the file."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_origin

from remora.config.known import class_of, options, options_of, part_of, unit_of
from remora.config.settings import Settings

PREFIX = "REMORA_"

OTHERS = frozenset({"REMORA_CONFIG", "REMORA_DEV_HOME", "REMORA_PURE_PYTHON", "REMORA_SPARK_JARS"})
"""Variables of this form that are no options, and mean something to commands, to the installation or to scripts."""

_SERVICE_LINK = re.compile(
    r"(?:.*_)?(?:service_host|service_port(?:_.+)?|port_[0-9]{1,5}_(?:tcp|udp|sctp)(?:_(?:addr|port|proto))?)"
)
"""Ends of the names that Kubernetes gives variables of a Service, beside `_PORT`."""

_TOML_LIST = re.compile(r"""\s*\[\s*["'\]]""")
"""The beginning of a list as TOML has it; one without quotes may begin with the address `[::1]`."""


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
        if option in options_of(class_of(section)) or not _is_service_link(option, text):
            found[variable] = f"{section}.{option}"
    return found


def strangers(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that begin as options do and are passed over, by name, each with what it may be meant for.

    `OTHERS` are left out, and what Kubernetes sets for Services.
    """
    known = [key.replace(".", "_") for key, _ in options()]
    for variable, text in sorted(environment.items()):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable in OTHERS or _is_service_link(name, text):
            continue
        if not from_environment({variable: text}):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
            yield variable, f"it stands for no option{hint}"


def _is_service_link(option: str, text: str) -> bool:
    """Whether Kubernetes sets such a variable for a Service, here one whose name begins with `remora-<section>`."""
    is_url = re.match(r"(?:tcp|udp|sctp)://", text) is not None
    return _SERVICE_LINK.fullmatch(option) is not None or (option.split("_")[-1] == "port" and is_url)


def value_of(hint: Any, text: str) -> object:
    """What the text of a variable stands for: tables and lists in brackets are TOML, and texts need no quotes."""
    unit = unit_of(hint)
    if unit is not None and unit.kind == "count" and re.fullmatch("-?[0-9]{1,18}", text):
        return int(text)
    if hint is bool and text in ("true", "false"):
        return text == "true"
    if part_of(hint):
        return _toml(text, '[{ name = "a" }]')
    if get_origin(hint) is dict:
        return _toml(text, "{ cpu = 1.0 }")
    if get_origin(hint) is tuple and _TOML_LIST.match(text):
        return _toml(text, '["a", "b"]')
    return text


def _toml(text: str, example: str) -> object:
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        document = {}
    if document.keys() != {"value"}:
        raise ValueError(f"expected TOML such as {example}")
    return document["value"]
