"""Which destinations a worker leaves to others for a while, since they fail it, and which topics theirs refuses.

A destination is a host, or the brokers of a cluster, and many topics may lie behind it. What it does (no answer in
time, no connection, a broker that is away) counts for the destination. What it answers about one topic (a path's 503, a
full queue, too few replicas) counts for this topic alone, and shows that the destination is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

COUNTED = ("timeout", "unavailable", "storage")
CONNECT = "connect"
ANSWERED = "answered"
"""The destination answers, and does not take what was sent to one topic's endpoint."""
NOT_COUNTED = ("configuration", "too_large", "refused", "leader_moved", "fenced", "aborted")
"""Errors about a record, a topic's attributes or a routine move count for nobody."""

_TOPIC = "#"


def topic_place(destination: str, topic: str) -> str:
    """The name of one topic's endpoint at a destination. A path may hold secrets, so it names the topic instead."""
    return f"{destination}{_TOPIC}{topic}"


def is_topic(name: str) -> bool:
    """Whether this is the name of one topic's endpoint, and not of a destination."""
    return _TOPIC in name


def is_meant(name: str, destination: str | None) -> bool:
    """Whether a quarantine's name is this one, or that of a topic of this destination; None means all."""
    return destination is None or name == destination or name.startswith(f"{destination}{_TOPIC}")


@dataclass(frozen=True, slots=True)
class QuarantineOptions:
    """When a destination is quarantined, and for how long; `ratio` is the part of the workers that do so."""

    enabled: bool = True
    threshold: int = 5
    time_s: float = 1800
    ratio: float = 1.0
    connect_errors: bool = False
    early_release: bool = True


@dataclass(frozen=True, slots=True)
class WindowEnd:
    """What a window's end brought, each by name."""

    entered: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    released: int = 0


@dataclass(frozen=True, slots=True)
class Trials:
    """How often in a row a quarantine was forgotten, and when it was last, or began again."""

    count: int = 0
    at: float = 0.0


class FailureWindow:
    """What one window has counted: errors by name, and which topics fail although their destination works.

    The latter are blamed: their destination took or answered something of another topic after theirs had failed
    `threshold` times. What they do from then on counts for them alone.
    """

    def __init__(self) -> None:
        self._errors: dict[str, int] = {}
        self._unanswered: dict[str, int] = {}
        self._blamed: set[str] = set()

    @property
    def errors(self) -> dict[str, int]:
        """The errors of each name; of destinations and answers those since the last success."""
        return self._errors | {name: self._unanswered[name] for name in self._blamed}

    def of(self, name: str) -> int:
        """How many errors one name has."""
        return (self._unanswered if name in self._blamed else self._errors).get(name, 0)

    def count(self, destination: str, topic: str, errors: int, *, is_alone: bool) -> None:
        """The destination gave no answer to a topic; where the topic `is_alone`, its destination works."""
        place = topic_place(destination, topic)
        self._unanswered[place] = self._unanswered.get(place, 0) + errors
        if not is_alone and place not in self._blamed:
            self._errors[destination] = self._errors.get(destination, 0) + errors

    def count_answer(self, destination: str, topic: str, errors: int) -> None:
        """The destination answered that it does not take something of a topic."""
        place = topic_place(destination, topic)
        self._errors[place] = self._errors.get(place, 0) + errors

    def works(self, destination: str, topic: str, others: Collection[str], threshold: int) -> None:
        """The destination took or answered something of this topic; `others` are topics that it fails."""
        own = topic_place(destination, topic)
        self._errors.pop(destination, None)
        self._unanswered.pop(own, None)
        self._blamed.discard(own)
        for place in (topic_place(destination, each) for each in others):
            if self._unanswered.get(place, 0) >= threshold:
                self._blamed.add(place)

    def takes(self, destination: str, topic: str) -> None:
        """The destination took something of this topic: what it has answered before is over."""
        self._errors.pop(topic_place(destination, topic), None)


class Quarantine:
    """One worker's view: errors of the window under way, and until when it leaves which destination alone.

    Windows are fixed: nothing is carried from one to the next. A success clears what its window has counted so far.
    """

    def __init__(self, options: QuarantineOptions) -> None:
        self.enabled = options.enabled
        self.quarantined = 0
        self.skipped = 0
        self._options = options
        self._window = FailureWindow()
        self._until: dict[str, float] = {}
        self._failing: dict[str, set[str]] = {}  # the topics that a destination has not answered last
        self._trials: dict[str, Trials] = {}

    def use(self, options: QuarantineOptions) -> None:
        """Go by other options from now on; what is in quarantine stays so until its time is over."""
        self._options, self.enabled = options, options.enabled

    @property
    def errors(self) -> Mapping[str, int]:
        """The errors of the window under way, by name."""
        return self._window.errors

    def until(self, now: float) -> dict[str, float]:
        """The destinations in quarantine, and until when."""
        return {name: until for name, until in sorted(self._until.items()) if now < until}

    def error(self, destination: str, kind: str, count: int = 1, topic: str = "") -> int:
        """Something of this topic failed; answers how many errors count in this window where this one does."""
        place = topic_place(destination, topic)
        if kind == ANSWERED:
            self._window.count_answer(destination, topic, count)
            return self._window.of(place)
        if kind in COUNTED or kind == CONNECT:
            self._failing.setdefault(destination, set()).add(topic)
        if kind in COUNTED or (kind == CONNECT and self._options.connect_errors):
            self._window.count(destination, topic, count, is_alone=place in self._until)
        return self._window.of(destination)

    def close(self, now: float, chance: Mapping[str, float]) -> WindowEnd:
        """The window ends. `chance` is a draw in [0, 1) for each bad destination, 0 where there is none.

        A quarantine that lasts is not made longer, and is counted all the same.
        """
        self._until = self.until(now)
        errors, self._window = self.errors, FailureWindow()
        bad = sorted(name for name, count in errors.items() if count >= self._options.threshold)
        if not self.enabled:
            return WindowEnd(released=self.release())
        entered, skipped = [], []
        for name in bad:
            if chance.get(name, 0.0) >= self._options.ratio:
                skipped.append(name)
                continue
            self.quarantined += 1
            if name not in self._until:
                self._until[name] = now + self._options.time_s
                entered.append(name)
                if name in self._trials:
                    self._trials[name] = replace(self._trials[name], at=now)
        self.skipped += len(skipped)
        self._failing = {name: of for name, of in self._failing.items() if name in errors or name in self._until}
        return WindowEnd(tuple(entered), tuple(skipped))

    def forget(self, held: Collection[str], window_s: float, now: float) -> list[str]:
        """End the quarantines that bind no queue of this worker, and name them; `held` are the names that bind one.

        Nobody would find out that the destination works again. Its queues may come back for that, so it stays for a
        window, and twice as long each time that it goes on failing: one that fails all workers would else be handed
        round among them for ever.
        """
        time_s, gone = self._options.time_s, []
        for name in [each for each in self.until(now) if each not in held]:
            trials = self._trials.get(name, Trials())
            stays_s = 0.0 if is_topic(name) else min(time_s, window_s * 2.0 ** min(trials.count, 63))
            if now >= self._until[name] - time_s + stays_s:
                del self._until[name]
                gone.append(name)
                self._trials[name] = Trials(trials.count + 1, now)
        self._trials = {name: each for name, each in self._trials.items() if now < each.at + 2 * time_s}
        return gone

    def is_quarantined(self, destination: str, now: float) -> bool:
        """Whether this worker leaves the destination to others now."""
        return now < self._until.get(destination, now)

    def held_back_by(self, destination: str, topic: str, now: float) -> str | None:
        """Whose quarantine holds this topic's queues back: the destination's where it failed this topic, too, else its
        own; None where neither does. A topic that the destination has not failed uses it as ever."""
        if topic in self._failing.get(destination, ()) and self.is_quarantined(destination, now):
            return destination
        own = topic_place(destination, topic)
        return own if self.is_quarantined(own, now) else None

    def answered(self, destination: str, now: float, topic: str = "") -> bool:
        """The destination took something of this topic, or said that it does not; whether that ended its quarantine."""
        failing = self._failing.get(destination, set())
        if self._options.early_release or not self.is_quarantined(destination, now):
            failing.discard(topic)
        self._window.works(destination, topic, failing, self._options.threshold)
        return self._may_be_used(destination, now)

    def succeeded(self, destination: str, now: float, topic: str = "") -> bool:
        """The destination took something of this topic; whether that ended a quarantine, its own or the topic's."""
        self._window.takes(destination, topic)
        is_over = self.answered(destination, now, topic)
        return self._may_be_used(topic_place(destination, topic), now) or is_over

    def _may_be_used(self, name: str, now: float) -> bool:
        self._trials.pop(name, None)
        if not (self._options.early_release and self.is_quarantined(name, now)):
            return False
        del self._until[name]
        return True

    def release(self, destination: str | None = None) -> int:
        """End the quarantine of one destination with its topics, or of all, and answer of how many."""
        names = [name for name in self._until if is_meant(name, destination)]
        for name in names:
            del self._until[name]
            self._trials.pop(name, None)
        return len(names)


def owners(workers: Mapping[str, bool], need: int) -> list[str]:
    """Who may have a destination's shards: who does not have it in quarantine, and as many others as are missing."""
    good = sorted(name for name, has_it in workers.items() if not has_it)
    others = sorted(name for name, has_it in workers.items() if has_it)
    return good + others[: max(0, need - len(good))]
