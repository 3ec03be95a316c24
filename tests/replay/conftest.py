"""The fixtures of the tests of Spark jobs."""

from devkit.clusters.kafka import fragile_kafka, kafka
from devkit.clusters.s3 import zone20
from devkit.clusters.spark import spark
from devkit.clusters.spark_cluster import spark_cluster

__all__ = ["fragile_kafka", "kafka", "spark", "spark_cluster", "zone20"]
