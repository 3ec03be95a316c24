"""What a verdict cannot say, because journals and topics do not show it. Rules only, no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from remora.model.words import agreeing

_COMPARED = {
    "ingest": "opaqueData is the topic's own, and was compared with nothing; all other bytes of each value were",
    "s3": "the gateway writes the records: only bucket, key, event name, Kafka key, size of plain writes and the mark"
    " of the event are known and were compared; a removal is known by its place alone",
    "null": "nothing was sent by this run: only bucket, key, event name, Kafka key, size and the mark of the event were"
    " compared",
}
_ALONE = "without a journal nothing is known of what was sent: values were not compared, and what never came into a"
_ALONE += " queue is not missed"
_CHAIN = "the last record of each queue names a next one that is not there yet: behind it nothing is proven"
_UNCHAINED = "{n} [record tells|records tell] no position: no gap before or behind [it|them] can be seen"
_UNTOLD = "{n} [record begins a shard and names|records begin shards and name] only the generation before"
_UNTOLD += " [it|them]: what is missing at the end of that one is not seen without --ended"
_NUMBERS = "numbers before the least and behind the greatest one that was read are not missed, and a dead letter of a"
_NUMBERS += " corrupt entry names no number: each such letter may explain one gap"
_UNDECIDED = "readers of committed records see nothing yet of what lies behind a transaction that is open, and whether"
_UNDECIDED += " they will is not decided"
_SHARDS = (
    "shards are told by their names and notifications: a topic of radosgw that is called as a shard of another one"
)
_SHARDS += " (photos and photos.1) counts as that shard where one id of a bucket's notifications is in both, and a key"
_SHARDS += " whose events go to both counts as lying in several"
_MOVED = "keys are looked for by the partitions that the topic has now: records from before a change of their number"
_MOVED += " lie elsewhere"


def caveats(target: str | None, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The caveats beside the counts of results.Verdict. `target` is that of the run, None for a topic alone."""
    return tuple(_caveats(target, counts))


def _caveats(target: str | None, counts: Mapping[str, int]) -> Iterator[str]:
    yield _ALONE if target is None else _COMPARED.get(target, _COMPARED["null"])
    if counts["unchained"] < counts["in_kafka"]:
        yield _CHAIN
    if counts["unchained"]:
        yield agreeing(counts["unchained"], _UNCHAINED)
    if counts.get("ends_untold"):
        yield agreeing(counts["ends_untold"], _UNTOLD)
    if counts.get("numbered"):
        yield _NUMBERS
    if counts.get("undecided"):
        yield _UNDECIDED
    if counts.get("keys_in_several_shards") and target != "ingest":
        yield _SHARDS
    if counts["keys_misplaced"] or counts["keys_in_several_partitions"]:
        yield _MOVED
