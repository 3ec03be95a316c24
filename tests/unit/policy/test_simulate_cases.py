"""The tables of shaping and load, each row a script."""

from __future__ import annotations

from typing import Any

import pytest

from remora_pipeline.simulate.models import FORMS
from support.scripts import CASES, differences, run

LONG = {
    "L7-02": pytest.mark.full("an hour of 1,000 hosts takes 5 s: L7-01 has as many, and test_fleet.py loads of few")
}


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each["name"], marks=LONG.get(each["name"], ())) for each in CASES]
)
def test_row_of_the_tables(case: dict[str, Any]) -> None:
    """A script of the tables is answered as its row says, to the last unit."""
    assert differences(case["expect"], run(case["input"])) == []


def test_every_model_of_the_tables_is_run() -> None:
    """No table is left out because its model is unknown."""
    assert {each["input"]["model"] for each in CASES} <= set(FORMS)


def test_differences_are_seen() -> None:
    """The comparison of the tables finds a wrong number, a missing member, a broken bound and a list's length."""
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "more": 3}], "c": 4}) == []
    assert differences({"a": 1}, {"a": 2})
    assert differences({"a": 1}, {"a": True})
    assert differences({"a": 1}, {})
    assert differences([1], [1, 2])
    assert differences({"$min": 2}, 1)
    assert differences({"$text": ["x"]}, "y")
