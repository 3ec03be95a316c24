"""Which faults a run makes, drawn from its seed alone: the same seed draws the same faults in the same order."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What is hurt. A fault of a worker or a host takes one of the two hosts, one of a broker one of the three."""

    KILL_WORKER = "SIGKILL of a worker"
    KILL_SUCCESSOR = "SIGKILL of a worker, and of its successor as soon as it is there"
    KILL_HOST = "SIGKILL of a supervisor with its workers"
    FREEZE_WORKER = "SIGSTOP of a worker"
    FREEZE_HOST = "SIGSTOP of a supervisor with its workers for longer than the lease"
    PAUSE_HOST = "SIGSTOP of a supervisor with its workers for less than the lease"
    KILL_BROKER = "SIGKILL of a broker"
    FREEZE_BROKER = "SIGSTOP of a broker"
    MOVE_LEADERS = "other leaders"
    CUT = "cut connections to brokers"
    DELAY = "delayed connections to brokers"
    KILL_OSD = "SIGKILL of an OSD"
    FULL_DISK = "a full disk"
    STEP_CLOCK = "a step of the wall clock"
    DRAIN = "remora drain"
    RELOAD = "SIGHUP"
    LOWER_LIMIT = "a smaller max.message.bytes"
    CHANGE_LIFE = "another time_to_live and max_retries"
    SHAPE = "limits of traffic that come, change and go"
    KILL_RABBITMQ = "SIGKILL of RabbitMQ"
    FREEZE_RABBITMQ = "SIGSTOP of RabbitMQ"
    BLOCK_RABBITMQ = "a memory alarm of RabbitMQ"
    LOWER_RABBITMQ = "a smaller max_message_size of RabbitMQ"
    REFUSE = "records that the HTTP receiver refuses for good"
    ANSWER_LATE = "answers of the HTTP receiver that come after the daemon's time-out"
    KILL_NATS = "SIGKILL of the NATS server"
    FREEZE_NATS = "SIGSTOP of the NATS server"
    FILL_NATS = "a full NATS stream"
    SPILL = "owners killed and frozen within moves of entries, while endpoints are away"
    RESHARD = "other numbers of shards"

    @property
    def word(self) -> str:
        """Its name on the command line."""
        return self.name.lower().replace("_", "-")


WEIGHTS = {
    Fault.KILL_WORKER: 4,
    Fault.KILL_SUCCESSOR: 2,
    Fault.KILL_HOST: 4,
    Fault.FREEZE_WORKER: 2,
    Fault.FREEZE_HOST: 5,
    Fault.PAUSE_HOST: 2,
    Fault.KILL_BROKER: 3,
    Fault.FREEZE_BROKER: 3,
    Fault.MOVE_LEADERS: 2,
    Fault.CUT: 3,
    Fault.DELAY: 3,
    Fault.KILL_OSD: 3,
    Fault.FULL_DISK: 3,
    Fault.STEP_CLOCK: 2,
    Fault.DRAIN: 2,
    Fault.RELOAD: 2,
    Fault.LOWER_LIMIT: 5,
    Fault.CHANGE_LIFE: 3,
    Fault.SHAPE: 4,
    Fault.KILL_RABBITMQ: 3,
    Fault.FREEZE_RABBITMQ: 3,
    Fault.BLOCK_RABBITMQ: 3,
    Fault.LOWER_RABBITMQ: 3,
    Fault.REFUSE: 5,
    Fault.ANSWER_LATE: 4,
    Fault.KILL_NATS: 3,
    Fault.FREEZE_NATS: 3,
    Fault.FILL_NATS: 3,
    Fault.SPILL: 2,
    Fault.RESHARD: 4,
}

DOUBLINGS = {
    Fault.KILL_WORKER: 2,
    Fault.KILL_SUCCESSOR: 4,
    Fault.KILL_HOST: 2,
    Fault.FREEZE_WORKER: 2,
    Fault.FREEZE_HOST: 3,
    Fault.PAUSE_HOST: 2,
    Fault.KILL_BROKER: 3,
    Fault.FREEZE_BROKER: 3,
    Fault.MOVE_LEADERS: 2,
    Fault.CUT: 2,
    Fault.DELAY: 2,
    Fault.KILL_OSD: 3,
    Fault.FULL_DISK: 1,
    Fault.STEP_CLOCK: 0,
    Fault.DRAIN: 0,
    Fault.RELOAD: 0,
    Fault.LOWER_LIMIT: 3,
    Fault.CHANGE_LIFE: 1,
    Fault.SHAPE: 0,
    Fault.KILL_RABBITMQ: 3,
    Fault.FREEZE_RABBITMQ: 2,
    Fault.BLOCK_RABBITMQ: 2,
    Fault.LOWER_RABBITMQ: 2,
    Fault.REFUSE: 0,
    Fault.ANSWER_LATE: 2,
    Fault.KILL_NATS: 0,
    Fault.FREEZE_NATS: 0,
    Fault.FILL_NATS: 0,
    Fault.SPILL: 8,
    Fault.RESHARD: 0,
}
"""How often a fault may have what is in flight sent once more: by the next owner, by the late one, and at each retry
of an outage that lasts longer than `kafka.delivery_timeout`."""

HOSTS, BROKERS = 2, 3

_PARTS = {
    Fault.KILL_BROKER: "brokers",
    Fault.FREEZE_BROKER: "brokers",
    Fault.MOVE_LEADERS: "brokers",
    Fault.CUT: "network",
    Fault.DELAY: "network",
    Fault.KILL_OSD: "store",
    Fault.FULL_DISK: "store",
    Fault.STEP_CLOCK: "clock",
    Fault.LOWER_LIMIT: "limits",
    Fault.CHANGE_LIFE: "limits",
    Fault.SHAPE: "traffic",
    Fault.KILL_RABBITMQ: "rabbitmq",
    Fault.FREEZE_RABBITMQ: "rabbitmq",
    Fault.BLOCK_RABBITMQ: "rabbitmq",
    Fault.LOWER_RABBITMQ: "rabbitmq",
    Fault.REFUSE: "refusals",
    Fault.ANSWER_LATE: "answers",
    Fault.KILL_NATS: "nats",
    Fault.FREEZE_NATS: "nats",
    Fault.FILL_NATS: "nats",
    Fault.SPILL: "moves",
    Fault.RESHARD: "layouts",
}
OF_RABBITMQ = tuple(fault for fault, part in _PARTS.items() if part == "rabbitmq")
OF_NATS = tuple(fault for fault, part in _PARTS.items() if part == "nats")
OF_HTTP = (Fault.REFUSE, Fault.ANSWER_LATE)
UNNAMED = frozenset(Fault) - {Fault.RESHARD, *OF_HTTP, Fault.LOWER_RABBITMQ}
"""What is drawn where no fault is named. Gateways fill fewer queues where numbers of shards change, and daemons wait
for four seconds only where an HTTP receiver answers late."""

_ONLY_ON = {Fault.KILL_OSD: "rados", Fault.SPILL: "rados", Fault.FULL_DISK: "sqlite"}


@dataclass(frozen=True)
class Stroke:
    """One fault: after this many seconds of load, at this host, worker, broker or OSD, with this strength.

    `strength` lies between 0 and 1: how long something lasts, how far a clock is stepped, and which way.
    """

    fault: Fault
    after_s: float
    target: int
    strength: float

    @property
    def part(self) -> str:
        """What is hurt; a round hurts each part at most once, so that each fault meets its part in health."""
        return _PARTS.get(self.fault) or f"host {self.target % HOSTS + 1}"


def rounds(seed: str, count: int, store: str, among: Collection[Fault] = UNNAMED) -> Sequence[Sequence[Stroke]]:
    """The strokes of each round: one to three, in the order of their beginning, of the faults `among` which to draw.

    The first round freezes a host for longer than the lease, unless that is to be left out: a run without that proves
    no fence. Where numbers of shards may change they do so in every round. Raises ValueError where no fault is left.
    """
    chance = random.Random(f"{seed}/{store}")
    faults = [fault for fault in WEIGHTS if fault in among and _ONLY_ON.get(fault, store) == store]
    if not faults:
        raise ValueError(f"none of these faults can be made on {store}")
    first, always = ([each for each in faults if each is demanded] for demanded in (Fault.FREEZE_HOST, Fault.RESHARD))
    return [_round(chance, faults, [*(first if number == 0 else ()), *always]) for number in range(count)]


def _round(chance: random.Random, faults: Sequence[Fault], demanded: Sequence[Fault]) -> Sequence[Stroke]:
    strokes = [_stroke(chance, fault) for fault in demanded]
    while len(strokes) < len(demanded) or not strokes or (len(strokes) < 3 and chance.random() < 0.6):
        (fault,) = chance.choices(faults, weights=[WEIGHTS[each] for each in faults])
        stroke = _stroke(chance, fault)
        if not any(_collide(stroke, each) for each in strokes):
            strokes.append(stroke)
    return sorted(strokes, key=lambda each: each.after_s)


_UNDISTURBED = ("host", "brokers", "network", "limits", "traffic", "rabbitmq", "nats", "moves")
"""What stays whole while a host is frozen beyond its lease: the other one has to take over, and what was under way to
the frozen one has to be acknowledged, or it would have nothing to remove."""

_FREEZING = {Fault.FREEZE_HOST, Fault.SPILL}


def _collide(one: Stroke, other: Stroke) -> bool:
    """Whether these two cannot be made side by side."""
    if _FREEZING & {one.fault, other.fault}:
        return all(each.part.startswith(_UNDISTURBED) for each in (one, other))
    return one.part == other.part


def _stroke(chance: random.Random, fault: Fault) -> Stroke:
    return Stroke(fault, round(chance.uniform(0.5, 3.0), 2), chance.randrange(60), round(chance.random(), 3))
