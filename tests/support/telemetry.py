"""Telemetry that has seen everything once, so that every metric shows."""

from __future__ import annotations

from remora.metrics import Telemetry
from remora.metrics.sequencer import SequencerFigures, SequencerTelemetry
from remora.metrics.series import RoomLeft
from remora.model.caller import Caller
from remora.model.ledger import Balance, Tally
from remora.model.shard import QueueRoom, Shard
from remora.model.traffic import Meter
from remora.policy.status.condition import Condition, Outage, State
from remora.policy.status.stages import EventStage
from remora_pipeline.replay.job_telemetry import JobTelemetry, LandingState

NOW_NS = 1_795_227_938_000_000_000


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def exercise(telemetry: Telemetry) -> None:  # noqa: PLR0915 - a line for each event that there is
    """Report every kind of event once."""
    telemetry.started("0.1.0", "remora.toml", 2)
    telemetry.running("0.1.0")
    telemetry.letters_stored({"t": 1})
    telemetry.topics_held({"t": "held by an operator until it is resumed"})
    telemetry.destination_failing(Outage("b:9092", "refused", Condition(State.RETRYING), ["t"], 2))
    telemetry.worker_started(1, 4711)
    telemetry.worker_not_started(1, "Resource temporarily unavailable", 0.5)
    telemetry.worker_ready(1, 4711, 0.7)
    telemetry.worker_hangs(1, 4711, 20.0)
    telemetry.worker_ended(1, 4711, "killed by SIGKILL", 0.0)
    telemetry.workers(2)
    telemetry.serving("127.0.0.1:9750", "/run/remora/control.sock")
    telemetry.control_unavailable("/run/remora/control.sock", "Permission denied")
    telemetry.control_refused("/-/drain", Caller(address="127.0.0.1"), "no token")
    telemetry.host_drain(False, True, Caller(uid=0, pid=1))
    telemetry.quarantine_release(None, Caller(uid=0, pid=1))
    telemetry.shaping_changed([("uplink", "enabled", "disabled")], "command", Caller(uid=0, pid=1))
    telemetry.shaping_overridden({"uplink": True})
    telemetry.claimed("t", Caller(uid=0, pid=1, host="h"))
    telemetry.presence_failed("/run/remora", "Permission denied")
    telemetry.clearing_failed("no answer")
    telemetry.listed("t", 3, 300)
    telemetry.delivered("t", 3, 400, [NOW_NS - 10**9] * 3, NOW_NS)
    telemetry.removed("t", 3)
    telemetry.failed("t", "transient", "broker away")
    telemetry.emptied("t")
    telemetry.failed("t", "transient", "broker away")
    telemetry.retry("t", 0.5)
    telemetry.dead_lettered("t", "t", "0/100", "undecodable", "cut short")
    telemetry.backlog("t", 7, True, 700, 1.5)
    telemetry.balances("t", [Balance(Shard("t"), 8, 1, Tally(delivered=5, expired=1))])
    telemetry.room_left("t", RoomLeft(100, 1000, 50, 60.0))
    telemetry.spill_began("t", "t")
    telemetry.spill_moved("t", 3)
    telemetry.spilled("t", 3, 300)
    telemetry.spill_near_bound("t", 0.5)
    telemetry.spill_refused("t", "t", "no room")
    telemetry.spill_ended("t", "t")
    telemetry.spill_seam(Shard("t"), 3)
    telemetry.mended("t", "t", QueueRoom(1000, 0, 990, 0), QueueRoom(1000, 0, 0, 0))
    telemetry.mend_failed("t", "t", "other clients always came first")
    telemetry.in_flight(12, 3)
    telemetry.unacked_waited("topic")
    telemetry.turned_back("client_low", 3)
    telemetry.store_synced(4)
    telemetry.owned(2)
    telemetry.eligible(3)
    telemetry.members(2, 1)
    telemetry.quarantining(0.25)
    telemetry.moved("planned")
    telemetry.members_failed("no answer")
    telemetry.acquired("t", True)
    telemetry.renewed(0.01)
    telemetry.renewal_failed("t", "no answer")
    telemetry.lost("t", "somebody else has it")
    telemetry.released("t")
    telemetry.store_state(True, "a cluster")
    telemetry.store_failing({"gone": "it is away"}, {"/srv/disk2": "it is lost"})
    telemetry.catalogue_failed("no answer")
    telemetry.reloaded("remora.toml", ["log.level"], ["rados.pool"])
    telemetry.reload_failed("log.level: no")
    telemetry.ingested("t", 3, 300, 1)
    telemetry.ingest_repeated("t")
    telemetry.ingest_tested("t", 1)
    telemetry.ingest_unmatched(2, "b")
    telemetry.ingest_answered("publish", 200, 0.01)
    telemetry.ingest_refused("SlowDown", 503, "the queue is full")
    telemetry.ingest_limited("token")
    telemetry.ingest_connection_cut("slow")
    telemetry.shaping_granted("uplink", "client_low", 100, True)
    telemetry.shaping_granted("uplink", "client_low", 100, False)
    telemetry.shaping_waits("uplink", "client_low")
    telemetry.shaping_waited("uplink", "client_low", 0.1)
    telemetry.shaping_waiting({("uplink", "client_low"): 1})
    telemetry.shaping_level("uplink", "client_low", -100)
    telemetry.shaping_moved("transferred", "uplink", "client_low", 7)
    telemetry.shaping_moved("donated", "uplink", "client_low", 7)
    telemetry.shaping_lost("uplink", 7)
    telemetry.shaping_scale("uplink", 0.5, 7)
    telemetry.shaping_meters({"uplink": {"client_low": Meter(100, 50, 200)}}, 0.001)
    telemetry.ingest_load(3, 2, 100)
    telemetry.ingest_serving("unix:/run/remora/ingest.sock", 2)
    telemetry.ingest_credentials("tokens")
    telemetry.ingest_credentials_refused("line 3: no")
    telemetry.http_opened()
    telemetry.http_answered("2xx", 3)
    telemetry.http_retried()
    telemetry.http_closed()
    telemetry.producer_opened("kafka:9092")
    telemetry.producer_retired("kafka:9092", "OutOfOrderSequenceNumber")
    telemetry.producer_closed("kafka:9092")
    telemetry.amqp_connected("rabbit:5672")
    telemetry.amqp_disconnected("rabbit:5672", "the connection broke")
    telemetry.amqp_unroutable("rabbit:5672", "events")
    telemetry.nats_connected("nats:4222")
    telemetry.nats_disconnected("nats:4222", "the connection broke")
    telemetry.nats_known("nats:4222", "window")
    telemetry.denied("http")
    telemetry.exact_opened("kafka:9092")
    telemetry.transaction_ended("kafka:9092", "committed", 0.02)
    telemetry.transaction_ended("kafka:9092", "fenced", 0.02)
    telemetry.exact_closed("kafka:9092")
    telemetry.partitions_changed("kafka:9092", "events", 3, 6)
    telemetry.limit_assumed("kafka:9092", "events", 1_048_588)
    telemetry.loop_lag(0.002)
    telemetry.stage_took(EventStage.PUSH, "kafka", 0.003)
    telemetry.stage_took(EventStage.COMMIT_SYNC, "sqlite", 0.001)
    telemetry.store_depth(2, 3)
    telemetry.read_in_vain(5)
    telemetry.collected(0, 0.001)
    telemetry.ready(True, False)


def exercise_sequencer(telemetry: SequencerTelemetry) -> None:
    """Report every kind of event of a sequencer once."""
    telemetry.registered(0.01)
    telemetry.not_registered("failed")
    telemetry.fenced("trust")
    telemetry.ended("p/b", 5)
    telemetry.figures = lambda: SequencerFigures(
        {"p/a": 7, "p/b": 1}, {"p/a": 3, "p/b": 2}, {"ok": 8}, {"serving": 2}, {"client": 4}, 1, 32, 9
    )


def landed() -> JobTelemetry:
    """What a landing exports."""
    telemetry = JobTelemetry()
    telemetry.landing(LandingState("photos", {0: 5}, {0: 7}, 1_790_000_000_000_000, 4, 1), 0.0)
    return telemetry


def exported(telemetry: Telemetry | SequencerTelemetry | JobTelemetry) -> set[str]:
    """The name of every sample that is exported now."""
    return {sample.name for metric in telemetry.registry.collect() for sample in metric.samples}
