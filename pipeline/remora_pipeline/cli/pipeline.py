"""`remora pipeline`: what is done with notifications behind Kafka."""

from __future__ import annotations

import click

from remora_pipeline.cli.spark import SparkCommands

MODULES: dict[str, str] = {
    "land": "pipeline_land:land",
    "inventory": "pipeline_inventory:inventory",
    "maintain": "pipeline_maintain:maintain",
    "reconcile": "pipeline_reconcile:reconcile",
}


@click.group(cls=SparkCommands, modules=MODULES)
def pipeline() -> None:
    """Land notifications from Kafka as tables, keep one of each bucket's current objects, and compare the buckets.

    Needs Java 17 and pip install remorad-pipeline; runs on this host, or on a Spark cluster.

    \b
    Start with:
      remora pipeline land --bootstrap broker:9092 --topic photos --out landed --checkpoint checkpoint
      remora pipeline inventory landed --out inventory
      remora pipeline reconcile photos --inventory inventory --s3 http://gateway:8000 --out reconciled
    """
