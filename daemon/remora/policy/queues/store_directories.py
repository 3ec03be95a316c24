"""In which directory of an embedded store a topic lies.

A topic's directory is chosen by its name among those that take topics, and stays: where a change of the directories
would have a name chosen otherwise, the name is written down with the directory that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A directory of a store: its number, which no other directory of the store ever has, and its path.

    One that takes no topics is to be removed.
    """

    number: int
    path: str
    takes_topics: bool = True


@dataclass(frozen=True, slots=True)
class StoreDirectories:
    """The directories of a store, as of a generation that grows with each change; none for a store of one directory.

    `topics` are the names that lie elsewhere than the rule says, with the number of their directory.
    """

    generation: int = 0
    directories: Sequence[StoreDirectory] = ()
    topics: Mapping[str, int] = field(default_factory=dict)
    next_number: int = 1

    def directory_of(self, name: str, place: int) -> int:
        """The number of the directory of a topic, whether there is such a topic or not; `place` is a hash of its name,
        divided by the number of files: the remainder chooses the file within the directory."""
        if not self.directories:
            return 0
        if (known := self.topics.get(name)) is not None:
            return known
        takers = [each.number for each in self.directories if each.takes_topics]
        return takers[place % len(takers)]

    def at(self, path: str) -> StoreDirectory | None:
        """The directory of this path."""
        return next((each for each in self.directories if each.path == path), None)

    def changed(self, directories: Sequence[StoreDirectory], known: Mapping[str, tuple[int, int]]) -> StoreDirectories:
        """The next generation, with other directories: each known name, which has a directory and a hash, stays."""
        last = max((each.number for each in directories), default=0)
        plain = StoreDirectories(self.generation + 1, tuple(directories), {}, max(self.next_number, last + 1))
        moved = {name: at for name, (at, place) in known.items() if plain.directory_of(name, place) != at}
        return replace(plain, topics=moved)
