"""Page views per user and five minutes, each counted exactly once, by as many queries as you like.

    python examples/spark_exactly_once.py localhost:9092 page-views /tmp/page-views

Start it several times, with a last argument to tell the copies apart: they share the partitions, may be killed and
started again, and the sums stay right.
"""

from __future__ import annotations

import sys
from typing import Any

from managedconsumer.spark import PageViewCounts, make_session


def main(bootstrap: str, topic: str, path: str, name: str = "") -> Any:
    spark = make_session(f"page views {name}")
    pipeline = PageViewCounts(path, bootstrap, topic, group_id="page-view-sums", name=name)
    pipeline.start(spark, available_now=True).awaitTermination()
    return pipeline.totals(spark)


if __name__ == "__main__":
    main(*sys.argv[1:]).orderBy("views", ascending=False).show(10, truncate=False)
