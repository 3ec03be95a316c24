"""What a look at the files of an embedded store finds, and what is left of a damaged one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from remora.model.words import several

MOST_PROBLEMS = 1000
"""At most this many problems of a file are told."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something that is not as it should be: what of the file it is about, and a sentence."""

    what: str
    text: str


@dataclass(slots=True)
class FileReport:
    """A file. The counts are what was looked at; `unproven` entries and letters have no checksum."""

    path: Path
    topics: int = 0
    queues: int = 0
    entries: int = 0
    letters: int = 0
    unproven: int = 0
    store: str = ""
    files: int = 0
    number: int = -1
    problems: list[FileProblem] = field(default_factory=list)

    def found(self, what: str, text: str) -> None:
        """Note a problem."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(FileProblem(what, text))


@dataclass(frozen=True, slots=True)
class DirectoryReport:
    """A directory of a store of several, with what lies in it; `trouble` says why that cannot be known."""

    path: str
    takes_topics: bool
    topics: int = 0
    entries: int = 0
    letters: int = 0
    requests: int = 0
    trouble: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost with it."""
        return not (self.trouble or self.topics or self.letters or self.requests)

    @property
    def text(self) -> str:
        """What lies in it, in a line."""
        if self.trouble:
            return self.trouble
        topics = several(self.topics, "topic")
        unfinished = f" and {several(self.requests, 'unfinished request')}" if self.requests else ""
        held = f"{several(self.entries, 'entry', 'entries')}, {several(self.letters, 'dead letter')}"
        return f"{topics} with {held}{unfinished}"


@dataclass(slots=True)
class Salvaged:
    """What became of a file's rows. `lost` has a sentence for each that could not be copied as it was.

    `unproven` of the `entries` have no checksum.
    """

    entries: int = 0
    unproven: int = 0
    rows: int = 0
    lost: list[str] = field(default_factory=list)
