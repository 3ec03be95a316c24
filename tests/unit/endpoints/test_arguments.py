"""The table of endpoints' arguments is what commands, files of topics, refusals and docs go by."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remora import endpoint_kinds
from remora.cli.declared import Table
from remora.cli.own_topic import create_command
from remora.endpoints.arguments import (
    AMQP_LEVEL,
    BATCH_RECORDS,
    COMMON,
    CREDENTIAL,
    OF_KIND,
    USE_SSL,
    VERSION,
    Argument,
    remarks_on_others,
)
from remora.model.errors import EndpointMisconfigured

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("argument", "text", "meant"),
    [
        (USE_SSL, "TRUE", True), (USE_SSL, "0", False), (USE_SSL, "", False),
        (AMQP_LEVEL, "", "broker"), (AMQP_LEVEL, "routable", "routable"),
        (BATCH_RECORDS, "", 100), (BATCH_RECORDS, "7", 7),
        (CREDENTIAL, "", ""), (CREDENTIAL, "a.b", "a.b"),
    ],
)  # fmt: skip
def test_what_an_argument_means(argument: Argument[object], text: str, meant: object) -> None:
    """A text is read by the argument's rule; an empty one, and none, mean its default."""
    assert argument.read({argument.name: text}) == meant
    if not text:
        assert argument.read({}) == meant


@pytest.mark.parametrize(
    ("argument", "text", "why"),
    [
        (USE_SSL, "secret", "use-ssl must be true or false"),
        (AMQP_LEVEL, "secret", "amqp-ack-level must be none, broker or routable"),
        (VERSION, "secret", "amqp-version must be 0-9-1"),
        (BATCH_RECORDS, "10001", "remora-batch-records must be a number from 1 to 10000"),
        (CREDENTIAL, ".secret", "remora-credential: letters, digits, '.', '_' and '-', and no '.' in front"),
    ],
)
def test_what_an_argument_may_not_say(argument: Argument[object], text: str, why: str) -> None:
    """A refusal names the argument and what it may say, and never what it said."""
    with pytest.raises(EndpointMisconfigured) as caught:
        argument.read({argument.name: text})

    assert str(caught.value) == why


def test_each_argument_stands_once() -> None:
    """No two arguments have a name in common, each default is one that it may say, and all reach the commands."""
    every = [*COMMON, *(each for arguments in OF_KIND.values() for each in arguments)]

    assert len({each.name for each in every}) == len(every) == len(endpoint_kinds.ARGUMENTS)
    assert {each.name: each for each in every} == endpoint_kinds.ARGUMENTS
    assert all(each.about and each.read({}) is not None for each in every if each.default)
    assert {name for name, each in endpoint_kinds.ARGUMENTS.items() if each.only_from} == {
        "password", "ssl-key-password", "sasl-oauthbearer-client-secret",
    }  # fmt: skip


def test_what_is_secret_comes_from_a_file() -> None:
    """Each secret has its option of `topic create` and its key in a file of topics; no other argument has."""
    secret = {each.only_from for each in endpoint_kinds.ARGUMENTS.values() if each.only_from}
    options = {name.removeprefix("--") for each in create_command.params for name in each.opts}
    keys = {each.encode_name for each in msgspec.structs.fields(Table)}

    assert secret <= options
    assert secret <= keys
    assert not (options | keys) & {name for name, each in endpoint_kinds.ARGUMENTS.items()}


def test_help_names_each_argument() -> None:
    """`topic create --help` names every argument that `--arg` takes."""
    (option,) = [each for each in create_command.params if "--arg" in each.opts]
    help_text = str(option.to_info_dict()["help"])

    assert all(name in help_text for name, each in endpoint_kinds.ARGUMENTS.items() if not each.only_from)


def test_the_docs_are_what_the_table_says() -> None:
    """The docs have a row for each argument: its kind, what it may say, its default and its meaning."""
    rows = [
        f"| `{name}` | {each.kind or 'all'} | {each.rule} | {each.default and f'`{each.default}`'} | {each.about}"
        + (f"; from `--{each.only_from}`" if each.only_from else "") + " |"
        for name, each in endpoint_kinds.ARGUMENTS.items()
    ]  # fmt: skip
    found = [line for line in (DOCS / "endpoint-arguments.md").read_text().splitlines() if line.startswith("| `")]

    assert found == rows


def test_an_argument_of_another_kind_is_remarked_on() -> None:
    """What a topic says for endpoints of another kind has no effect, and it is told."""
    given = {"use-ssl": "true", "amqp-exchange": "e", "cloudevents": "", "verify-ssl": "true"}

    assert list(remarks_on_others(given, "amqp")) == ["use-ssl has no effect at amqp endpoints"]
