"""The values of a test that both the gate and the full run try, and those that only the full run tries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

MORE = pytest.mark.full("more cases of what the gate tries with others")


def cases(*at_the_gate: object, more: Iterable[object]) -> list[Any]:
    """Gives the values for `pytest.mark.parametrize`, in this order."""
    return [*at_the_gate, *(pytest.param(each, marks=MORE) for each in more)]
