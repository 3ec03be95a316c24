"""The image with Spark as the chart runs it: hardened, on a read-only file system."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer

from devkit.clusters.image import HARDENED, HERE, Image, pipeline_image
from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import Ended
from remora.model.exits import Exit
from support.ingest import record

__all__ = ["pipeline_image"]

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.full("the image is a release's"),
    pytest.mark.timeout(3600),  # the image is built where its sources have changed
]

ROOM = ("--memory", "2g", "--pids-limit", "1000", "--tmpfs", "/tmp:exec")
"""Java loads libraries that it writes there; an emptyDir of Kubernetes allows that, too."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder that any user may write to, as the container's user has no name here."""
    tmp_path.chmod(0o777)
    return tmp_path


async def run(image: Image, lake: Path, *args: str) -> Ended:
    """A command of the image's, with a folder for its tables."""
    return await image.podman("run", "--rm", *HARDENED, *ROOM, *HERE, "--volume", f"{lake}:/lake", image.name, *args)


def rows(folder: Path, column: str) -> list[str]:
    """A column of a table of Parquet."""
    files = [each for each in folder.rglob("*.parquet") if not each.name.startswith((".", "_"))]
    return sorted(value for each in files for value in pq.read_table(each, columns=[column])[column].to_pylist())


async def send(kafka: Kafka, topic: str, keys: list[str]) -> None:
    """A notification of each key."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await producer.start()
    try:
        for key in keys:
            await producer.send_and_wait(topic, json.dumps({"Records": [record(key)]}).encode())
    finally:
        await producer.stop()


async def test_a_hardened_container_lands_and_takes_the_inventory(
    pipeline_image: Image, kafka: Kafka, lake: Path
) -> None:
    """Without root, capabilities and a writable file system it lands each event once, over two runs, and makes the
    inventory."""
    topic = await create_topic(kafka.address)
    keys: list[str] = []
    for start in ("first", "second"):
        new = [f"{start}-{number}" for number in range(20)]
        await send(kafka, topic, new)
        keys += new

        done = await run(
            pipeline_image, lake, "pipeline", "land", "--bootstrap", kafka.address, "--topic", topic,
            "--out", "/lake/landed",
        )  # fmt: skip

        assert done.code == Exit.OK, done.err
        assert rows(lake / "landed/events", "key") == sorted(keys)
    done = await run(pipeline_image, lake, "pipeline", "inventory", "/lake/landed", "--out", "/lake/inventory")
    assert done.code == Exit.OK, done.err
    assert rows(lake / "inventory/current/objects", "key") == sorted(keys)


async def test_the_pipeline_has_what_the_constraints_say_and_nothing_that_builds(pipeline_image: Image) -> None:
    """No compiler and no installer is in the image; the jars of the connector are, of Spark's own version."""
    script = (
        "import glob, pyspark, shutil;"
        "print([name for name in ('cc', 'gcc', 'ld', 'make', 'pip', 'mvn', 'javac') if shutil.which(name)],"
        " len(glob.glob('/opt/remora/spark-kafka/*.jar')),"
        " any(pyspark.__version__ in name for name in glob.glob('/opt/remora/spark-kafka/spark-sql-kafka*')))"
    )

    done = await pipeline_image.podman(
        "run", "--rm", *HERE, "--entrypoint", "/opt/remora/bin/python", pipeline_image.name, "-c", script
    )

    assert (done.code, done.out) == (0, b"[] 4 True\n"), done.err
