"""Many scripts side by side: the same function in this process and in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from remora_pipeline.simulate.models import FORMS
from remora_pipeline.simulate.script import answer, line, read, script_from

COLUMNS = "number long, script string, line string"
"""What `in_pandas` gives, as Spark names the types: a script's place, itself, and its answer."""


def line_of(script: str) -> str:
    """The answer of a script, as `remora simulate` prints it. Raises NoScript."""
    return line(answer(script_from(read(script.encode()), FORMS)))


def in_pandas(batches: Iterable[Any]) -> Iterator[Any]:
    """For Spark's `mapInPandas`: data frames with a `number` and a `script`, and then with its `line` beside them."""
    for batch in batches:
        yield batch.assign(line=[line_of(script) for script in batch["script"]])
