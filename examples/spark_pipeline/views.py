"""The tables of the pipeline: page views as they come, and their number for each user."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from managedconsumer.spark import ManagedKafkaSource

spark = SparkSession.active()
spark.dataSource.register(ManagedKafkaSource)


@dp.table
def views() -> DataFrame:
    return (
        spark.readStream.format("managedkafka")
        .option("kafka.bootstrap.servers", os.environ["KAFKA"])
        .option("subscribe", os.environ["TOPIC"])
        .option("startingOffsets", "earliest")
        .option("columns", "key,timestamp")
        .load()
        .selectExpr("CAST(key AS string) AS user", "timestamp")
    )


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("views").groupBy("user").count()
