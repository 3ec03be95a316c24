"""Options in the environment: each one can be given, in every form that TOML has for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import config
from remora.config import Settings
from remora.config.environment import OTHERS
from remora.model.errors import ConfigError

OPTIONS = dict(config.options())
NEVER = "[{\0"
"""No option can have this value."""


def variable_of(key: str) -> str:
    """The variable that stands for an option."""
    return f"REMORA_{key.replace('.', '_').upper()}"


def text_of(value: object) -> str:
    """A default as a person writes it into a variable."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {number}" for name, number in value.items()) + " }"
    if isinstance(value, list):
        return ",".join(value) or "[]"
    return str(value)


@pytest.mark.parametrize("key", OPTIONS)
def test_each_option_is_read_from_its_variable(key: str) -> None:
    """The default of every option can be given as text, and what can be no value of it is refused by the variable."""
    assert config.load(None, {variable_of(key): text_of(OPTIONS[key])}) == Settings()

    with pytest.raises(ConfigError) as caught:
        config.load(None, {variable_of(key): NEVER})

    assert caught.value.problems[0].key == variable_of(key)


def test_an_option_that_is_a_table_is_given_as_toml() -> None:
    """Weights by name are an inline table."""
    settings = config.load(None, {"REMORA_BALANCE_WEIGHTS": "{ cpu = 2.5, memory = 0 }"})

    assert settings.balance.weights == {"cpu": 2.5, "memory": 0.0}


SCOPES = """[
    { name = "uplink", of = "host", meters.max = { guaranteed = "1MB", burst = "2MB" } },
    { name = "each", of = "topic", match = ["a*"] },
]"""


def test_tables_of_a_variable_stand_over_those_of_the_file(tmp_path: Path) -> None:
    """The lists of tables that a file may have can be given as one value of TOML, and replace the file's."""
    file = tmp_path / "remora.toml"
    file.write_text(f"[shaping]\nscope = {SCOPES}\n[[ingest.limit]]\nname = 'g'\nof = 'token'\n")
    limit = "[{ name = 'g', of = 'topic', events = 7, burst_events = 9 }]"

    settings = config.load(file, {"REMORA_INGEST_LIMIT": limit})

    assert settings.shaping == config.load(None, {"REMORA_SHAPING_SCOPE": SCOPES}).shaping
    assert [each.name for each in settings.shaping.scope] == ["uplink", "each"]
    assert [(each.name, each.of) for each in settings.ingest.limit] == [("g", "topic")]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("10.0.0.0/8, 192.0.2.1", ("10.0.0.0/8", "192.0.2.1")),
        ('["10.0.0.0/8", "192.0.2.1"]', ("10.0.0.0/8", "192.0.2.1")),
        ("['10.0.0.0/8']", ("10.0.0.0/8",)),
        ("[::1]:80", ("[::1]:80",)),
        ("[]", ()),
        ("", ()),
    ],
)
def test_a_list_is_given_with_commas_or_as_toml(text: str, items: tuple[str, ...]) -> None:
    """Both forms are one list, an empty one too; an IPv6 address in brackets is none."""
    assert config.load(None, {"REMORA_DESTINATIONS_ALLOW": text}).destinations.allow == items


@pytest.mark.parametrize(
    ("variable", "text", "key", "message"),
    [
        ("REMORA_SHAPING_SCOPE", "uplink", "REMORA_SHAPING_SCOPE", "expected TOML such as"),
        ("REMORA_SHAPING_SCOPE", "[]\nx = 1", "REMORA_SHAPING_SCOPE", "expected TOML such as"),
        ("REMORA_SHAPING_SCOPE", "3", "REMORA_SHAPING_SCOPE", "expected tables"),
        ("REMORA_SHAPING_SCOPE", "[" * 9999, "REMORA_SHAPING_SCOPE", "expected TOML such as"),
        ("REMORA_SHAPING_SCOPE", "9" * 9999, "REMORA_SHAPING_SCOPE", "expected TOML such as"),
        ("REMORA_SHAPING_SCOPE", "[{name = 'u'}]", "REMORA_SHAPING_SCOPE.u.of", "is missing"),
        ("REMORA_INGEST_LIMIT", "[{nam = 'u', of = 'token'}]", "REMORA_INGEST_LIMIT.0.nam", 'mean "name"?'),
        ("REMORA_BALANCE_WEIGHTS", "cpu=1", "REMORA_BALANCE_WEIGHTS", "expected TOML such as { cpu = 1.0 }"),
        ("REMORA_BALANCE_WEIGHTS", "{ cpu = 'x' }", "REMORA_BALANCE_WEIGHTS", "expected a number for cpu"),
        ("REMORA_DESTINATIONS_ALLOW", "['a', 1]", "REMORA_DESTINATIONS_ALLOW", "expected a list"),
        ("REMORA_DESTINATIONS_ALLOW", "['a', ", "REMORA_DESTINATIONS_ALLOW", "expected TOML such as"),
        ("REMORA_QUARANTINE_ENABLED", "yes", "REMORA_QUARANTINE_ENABLED", "expected true or false"),
        ("REMORA_QUARANTINE_ENABLED", "", "REMORA_QUARANTINE_ENABLED", "expected true or false"),
        ("REMORA_LOG_LEVEL", "", "REMORA_LOG_LEVEL", "is not one of"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_variable(variable: str, text: str, key: str, message: str) -> None:
    """The refusal begins with the variable, and goes on with the path in its tables."""
    with pytest.raises(ConfigError) as caught:
        config.load(None, {variable: text})

    assert caught.value.problems[0].key == key
    assert message in str(caught.value)


def test_a_rule_that_tables_of_a_variable_break_names_the_variable(tmp_path: Path) -> None:
    """Not the line of the file whose tables it stands over."""
    file = tmp_path / "remora.toml"
    file.write_text("[[shaping.scope]]\nname = 'up'\nof = 'host'\n")
    twice = "[{ name = 'up', of = 'host' }, { name = 'up', of = 'host' }]"

    with pytest.raises(ConfigError) as caught:
        config.load(file, {"REMORA_SHAPING_SCOPE": twice})

    assert str(caught.value).endswith("(from REMORA_SHAPING_SCOPE)")


def test_variables_that_stand_for_nothing_are_told_with_what_they_may_mean() -> None:
    """Not those that mean something else, nor those that Kubernetes sets for Services named like remora's."""
    environment = {
        "REMORA_KAFAK_COMPRESSION": "zstd",
        "REMORA_FOO_BAR": "1",
        "REMORA_LOG": "x",
        "REMORA_LOG_LEVEL": "debug",
        "REMORA_LOG_LEVL": "refused, and not passed over",
        "REMORA_SERVICE_HOST": "10.0.0.1",
        "REMORA_PORT": "tcp://10.0.0.1:80",
        "REMORA_PORT_80_TCP_ADDR": "10.0.0.1",
        "REMORA_METRICS_SERVICE_PORT_HTTP": "80",
        "PATH": "/bin",
        **dict.fromkeys(OTHERS, "x"),
    }

    assert list(config.strangers(environment)) == [
        ("REMORA_FOO_BAR", "it stands for no option"),
        ("REMORA_KAFAK_COMPRESSION", "it stands for no option; did you mean REMORA_KAFKA_COMPRESSION?"),
        ("REMORA_LOG", "it stands for no option"),
    ]
