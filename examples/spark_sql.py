"""A topic as a table of Spark's catalog, for SQL.

python examples/spark_sql.py localhost:9092 page-views
"""

from __future__ import annotations

import sys
from typing import Any

from managedconsumer.spark import make_session


def main(bootstrap: str, topic: str) -> Any:
    spark = make_session("tables")
    spark.sql("DROP TABLE IF EXISTS page_views")
    spark.sql(
        f"CREATE TABLE page_views USING managedkafka OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', "
        f"subscribe '{topic}', columns 'key,timestamp')"
    )
    return spark.sql("SELECT CAST(key AS string) AS user, count(*) AS views FROM page_views GROUP BY key")


if __name__ == "__main__":
    main(*sys.argv[1:]).orderBy("views", ascending=False).show(10, truncate=False)
