"""The fixtures of the tests of Spark jobs."""

from support.kafka import fragile_kafka, kafka
from support.spark import spark
from support.spark_cluster import spark_cluster

__all__ = ["fragile_kafka", "kafka", "spark", "spark_cluster"]
