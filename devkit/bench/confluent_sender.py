"""Send the lines of a file to Kafka by confluent-kafka: confluent_sender.py FILE TOPIC PROPERTIES [RECORDS].

A line is a key, a tab and a body. PROPERTIES is librdkafka's configuration as JSON. Each record has six headers, as the
daemon's have, and an acknowledgement of its own, which the daemon needs to remove a queue's front. With RECORDS, each
transaction has as many. Nothing else runs in the process, and there is no event loop: the least that the library costs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

POLL_EVERY = 200
SHARDS = 11


class Sender:
    """Sends, and counts what is acknowledged."""

    def __init__(self, topic: str, properties: dict[str, str | int], transaction: int) -> None:
        self._producer = Producer(properties)
        self._topic, self._transaction = topic, transaction
        self.acknowledged = 0
        if transaction:
            self._producer.init_transactions()

    def send(self, lines: list[bytes]) -> None:
        """Send all lines, and return when each is acknowledged."""
        if self._transaction:
            for first in range(0, len(lines), self._transaction):
                self._producer.begin_transaction()
                self._produce(first, lines[first : first + self._transaction])
                self._producer.commit_transaction()
        else:
            self._produce(0, lines)
        self._producer.flush()
        if self.acknowledged != len(lines):
            raise SystemExit(f"{self.acknowledged} of {len(lines)} records were acknowledged")

    def _produce(self, first: int, lines: list[bytes]) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for number, line in enumerate(lines, first):
            key, _, body = line.partition(b"\t")
            shard, position = b"bench.%d" % (number % SHARDS), number // SHARDS * 1024
            headers: list[tuple[str, str | bytes | None]] = [
                ("remora-shard", shard),
                ("remora-pos", b"0123456789abcdef:0/%d" % position),
                ("remora-next", b"0123456789abcdef:0/%d" % (position + 1024)),
                ("remora-seq", b"%d" % number),
                ("remora-event-id", b"%d.000000" % number),
                ("content-type", b"application/json"),
            ]
            while True:
                try:
                    produce(self._topic, body, key, headers=headers, on_delivery=self._ack)
                    break
                except BufferError:
                    poll(0.01)
            if number % POLL_EVERY == 0:
                poll(0)

    def _ack(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise SystemExit(f"a record was refused: {error}")
        self.acknowledged += 1


def main(file: str, topic: str, properties: str, transaction: str = "0") -> None:
    """Send the file."""
    Sender(topic, json.loads(properties), int(transaction)).send(Path(file).read_bytes().splitlines())


if __name__ == "__main__":
    main(*sys.argv[1:])
