"""The blocks of the documents: what a reader copies from them is whole."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib

import pytest

from remora import config
from support.blocks import DOCUMENTS, ROOT, blocks

OWN_VARIABLES = {"CONFIG", "SPARK_JARS"}
"""Variables of remora that are no options."""
AS_EXAMPLES = {"LOG_PORT", "LOG_LEVL", "FOO_BAR", "SUPERVISOR_GRACE"}
"""What operations.md and how-to-add.md name because it is no option."""


def test_each_block_of_a_shell_is_one() -> None:
    """A shell takes each of them, up to unbalanced quotes and parentheses, without running it."""
    checked = [
        (where, subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True))
        for where, text in blocks("sh")
    ]

    assert [(where, done.stderr) for where, done in checked if done.returncode] == []
    assert len(checked) > 30


@pytest.mark.parametrize(
    ("kind", "read"),
    [("toml", tomllib.loads), ("json", json.loads), ("python", ast.parse)],
    ids=["toml", "json", "python"],
)
def test_each_block_of_a_language_can_be_read(kind: str, read: object) -> None:
    """TOML, JSON and Python in blocks that say so are whole."""
    assert callable(read)
    wrong = []
    for where, text in blocks(kind):
        try:
            read(text)
        except (ValueError, SyntaxError) as exc:
            wrong.append(f"{where}: {exc}")

    assert wrong == []


def test_each_variable_that_is_named_is_an_option() -> None:
    """REMORA_SECTION_OPTION in a document or in the file of all options is the variable of an option that there is."""
    options = {path.replace(".", "_").upper() for path, _ in config.options()} | OWN_VARIABLES | AS_EXAMPLES
    files = [*DOCUMENTS, ROOT / "config/options.toml", ROOT / "config/remora.toml"]
    named = {each for file in files for each in re.findall(r"\bREMORA_([A-Z][A-Z_]+[A-Z])\b", file.read_text())}

    assert sorted(named - options) == []
    assert len(named) > 10
