"""A stand-in for librados, whose calls put an operation together step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = tuple[Any, ...]
"""What is added to an operation: the end of the call's name, behind `read_op_` or `write_op_`, and its arguments."""


class StepRecorder:
    """Keeps the steps of the operation that is put together; all other calls do nothing."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        _, _, step = name.partition("_op_")

        def add(_: object, *arguments: object) -> int:
            self._steps.append((step, *arguments))
            return 1

        return add if step else lambda *_: 1

    def taken(self) -> list[Step]:
        """The steps of the operation that was put together last."""
        steps, self._steps = self._steps, []
        return steps
