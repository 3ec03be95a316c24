"""Kafka's own ProducerPerformance, from the jars."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from remora.config import KafkaSettings

_JARS = Path(__file__).resolve().parents[1] / "dev/kafka-jars"
_RATE = re.compile(r"^\d+ records sent, ([\d.]+) records/sec", re.MULTILINE)
_BATCH_BYTES = 512 << 10


class ProducerPerformanceFailed(Exception):
    """It ended without figures; the message is what it said."""


def send(address: str, topic: str, records: int, payload: Sequence[str]) -> float:
    """Have it send as fast as it can, compressed as the daemon does; records a second, its own start left out.

    `payload` are its options for that: a file of bodies, one a line, or a size.
    """
    jars = subprocess.run([_JARS], capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    properties = {
        "bootstrap.servers": address, "acks": "all", "compression.type": KafkaSettings().compression,
        "batch.size": _BATCH_BYTES, "linger.ms": 5,
    }  # fmt: skip
    argv = [
        *("java", "-Xmx512m", "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance", "--topic", topic),
        *("--num-records", str(records), "--throughput", "-1", *payload, "--producer-props"),
        *(f"{name}={value}" for name, value in properties.items()),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = _RATE.findall(done.stdout)
    if done.returncode or not found:
        raise ProducerPerformanceFailed(done.stderr.strip()[-500:])
    return float(found[-1])
