"""The position of an entry in its queue."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """Where an entry begins in its queue, ordered as (gen, offset).

    `gen` counts the ring's turns and `offset` is in bytes. radosgw itself compares the halves separately and so loses
    entries when the ring wraps; tuple order is the right one. Positions of two incarnations of a queue must never be
    compared.
    """

    gen: int
    offset: int

    def __str__(self) -> str:
        """The marker as the object class writes it, `gen/offset`."""
        return f"{self.gen}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read `gen/offset`; ValueError for anything else."""
        gen, slash, offset = text.partition("/")
        # isdigit() alone accepts other scripts' digits, and int() accepts signs, spaces and underscores.
        if not slash or not (text.isascii() and gen.isdigit() and offset.isdigit()):
            raise ValueError(f"not a queue position: {text!r}")
        return cls(int(gen), int(offset))
