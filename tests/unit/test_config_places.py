"""The line of each key, in files of all shapes that TOML allows."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import config
from remora.config.places import MOST_LINES, line_of, lines_of
from remora.model.errors import ConfigError

FILE = '''\
# log.level = "not here"
[log]
level = "debug"  # [delivery]
format = """
level = 3
[ingest]"""

[ "delivery" ]
mode.x = 1
"list_entries" = [
  1,  # ]
  { a = 2 },
]
[balance]
weights = { cpu = 1.0, memory = 2.0 }
[[shaping.scope]]
name = "up"
[shaping.scope.meters]
max = { burst = 1 }
[shaping.scope.meters.client_low]
burst = 3
[[shaping.scope]]
of = "host"
[[shaping.scope]]
name = "up.down"
[shaping.scope.meters]
idle.burst = 2
[[ingest.limit]]
[[ingest.limit.part]]
[[ingest.limit.part]]
x = 1
'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("log", 2),
        ("log.level", 3),
        ("log.format", 4),
        ("log.nothing", 2),
        ("delivery", 8),
        ("delivery.mode.x", 9),
        ("delivery.list_entries", 10),
        ("delivery.list_entries.1.a", 10),
        ("balance.weights.memory", 15),
        ("shaping.scope", 16),
        ("shaping.scope.up.name", 17),
        ("shaping.scope.up.meters", 18),
        ("shaping.scope.up.meters.max.burst", 19),
        ("shaping.scope.up.meters.max.guaranteed", 19),
        ("shaping.scope.up.meters.client_low", 20),
        ("shaping.scope.up.meters.client_low.burst", 21),
        ("shaping.scope.1", 22),
        ("shaping.scope.1.of", 23),
        ("shaping.scope.up.down.name", 25),
        ("shaping.scope.up.down.meters.idle.burst", 27),
        ("ingest.limit.0", 28),
        ("ingest.limit.0.part.1.x", 31),
        ("ingest.limit.0.bytes", 28),
        ("nowhere.at.all", 0),
        ("", 0),
    ],
)
def test_a_key_has_the_line_that_a_reader_finds(key: str, line: int, newline: str) -> None:
    """The line is that of the key, else of the nearest table around it."""
    assert line_of(key, lines_of(FILE.replace("\n", newline))) == line


def test_what_comes_before_a_value_of_very_many_lines_is_known() -> None:
    """A list of more lines than are tried hides the lines of what comes behind it, and no others."""
    text = "[log]\nlevel = 1\nlist = [\n" + "1,\n" * MOST_LINES + "]\nformat = 2\n"

    assert line_of("log.level", lines_of(text)) == 2
    assert line_of("log.format", lines_of(text)) == 1


TEXTS = st.text(st.sampled_from("ab\"'\\\n[]#= ä"), min_size=1, max_size=8)
VALUES = st.recursive(
    st.integers(0, 9) | st.booleans() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def written(value: object, *, is_long: bool) -> str:
    """A value as TOML, lists over several lines if asked for; JSON's texts and numbers are TOML's."""
    if isinstance(value, dict):
        items = [f"{json.dumps(key)} = {written(each, is_long=False)}" for key, each in value.items()]
        return f"{{ {', '.join(items)} }}"
    if isinstance(value, list):
        between = " # ]\n  " if is_long else " "
        return f"[{between}{''.join(written(each, is_long=is_long) + ',' + between for each in value)}]"
    return json.dumps(value)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_the_lines_of_any_file_begin_their_keys(document: dict[str, Any], has_tables: bool, is_long: bool) -> None:
    """Each key of the top has the line at which it was written, whatever stands in values and comments before it."""
    text, wanted = "", {}
    tables = {key: each for key, each in document.items() if has_tables and isinstance(each, dict)}
    for key, each in {**{key: each for key, each in document.items() if key not in tables}, **tables}.items():
        wanted[key] = text.count("\n") + 1
        if key in tables:
            text += f" [{json.dumps(key)}]\n"
            text += "".join(f"{json.dumps(name)} = {written(part, is_long=is_long)}\n" for name, part in each.items())
        else:
            text += f"{json.dumps(key)}={written(each, is_long=is_long)} # [x]\n\n"

    assert tomllib.loads(text) == document
    assert {key: lines_of(text)[key] for key in wanted} == wanted


def refusal(folder: Path, text: str, **environment: str) -> list[str]:
    (folder / "r.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(folder / "r.toml", environment)
    return [str(each).replace(str(folder), "") for each in caught.value.problems]


def test_each_problem_of_a_file_has_its_line(tmp_path: Path) -> None:
    """Wrong values, unknown names, missing options and broken rules are told at once, each with file and line."""
    text = "[log]\nlevel = 'x'\n[nothing]\n[delivery]\n\nretry_base = '1m'\n[[ingest.limit]]\nof = 1\n"
    found = refusal(tmp_path, text)

    assert [each.rpartition(" (")[2] for each in found] == [
        "/r.toml:2)",
        "/r.toml:3)",
        "/r.toml:8)",
        "/r.toml:7)",
        "/r.toml:6)",
    ]


def test_an_option_of_the_environment_is_named_by_its_variable(tmp_path: Path) -> None:
    """Where a variable stands over the file, or alone, the refusal names it, and no line."""
    text = "[ownership]\nlease = '90s'\nrenew_interval = '30s'\n"

    assert refusal(tmp_path, text, REMORA_OWNERSHIP_LEASE="soon")[0].startswith("REMORA_OWNERSHIP_LEASE: ")
    assert ".toml" not in refusal(tmp_path, text, REMORA_OWNERSHIP_LEASE="soon")[0]
    (broken,) = refusal(tmp_path, text, REMORA_OWNERSHIP_RENEW_INTERVAL="80s")
    assert broken.endswith("(from REMORA_OWNERSHIP_RENEW_INTERVAL)")


def test_a_rule_that_a_default_breaks_has_the_line_of_the_other_option(tmp_path: Path) -> None:
    """An option that the file does not have is broken by one that it has, whose line is told."""
    (found,) = refusal(tmp_path, "[log]\n[ownership]\nlease = '64s'\n")

    assert found.startswith("ownership.renew_interval: ")
    assert found.endswith("(/r.toml:3)")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[log]\nlevel = " + "9" * 10_000, "a number has too many digits"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("[log]\n[log]", "at line 2"),
        ("[log]\nlevel = 'a'\nlevel = 'b'\n", "at line 3"),
    ],
)
def test_what_is_no_toml_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    """Whatever the parser stumbles over, it is one problem that names the file, and never a crash."""
    (found,) = refusal(tmp_path, text)

    assert found.startswith("/r.toml is not TOML")
    assert told in found
