"""Kafka for PySpark: the data source ``managedkafka``, the page-view pipeline, claims for exactly-once files.

The names are loaded on first use, so that importing this package needs no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from managedconsumer.lazy import lazily

if TYPE_CHECKING:
    from managedconsumer.spark.claiming import group_claims as group_claims
    from managedconsumer.spark.claims.chains import ClaimStore as ClaimStore
    from managedconsumer.spark.claims.chains import ObjectClaims as ObjectClaims
    from managedconsumer.spark.claims.delta import DeltaClaims as DeltaClaims
    from managedconsumer.spark.claims.group import GroupClaims as GroupClaims
    from managedconsumer.spark.claims.iceberg import IcebergClaims as IcebergClaims
    from managedconsumer.spark.claims.log import ClaimLog as ClaimLog
    from managedconsumer.spark.claims.sql import SqlClaims as SqlClaims
    from managedconsumer.spark.events import PageViews as PageViews
    from managedconsumer.spark.lag import LagListener as LagListener
    from managedconsumer.spark.lag import SourceLag as SourceLag
    from managedconsumer.spark.pageviews import PageViewCounts as PageViewCounts
    from managedconsumer.spark.plans import ColumnsUsed as ColumnsUsed
    from managedconsumer.spark.plans import columns_used as columns_used
    from managedconsumer.spark.progress import ProgressListener as ProgressListener
    from managedconsumer.spark.reports import progress_of as progress_of
    from managedconsumer.spark.session import make_session as make_session
    from managedconsumer.spark.source import ManagedKafkaReader as ManagedKafkaReader
    from managedconsumer.spark.source import ManagedKafkaSource as ManagedKafkaSource
    from managedconsumer.spark.source import ManagedKafkaStreamReader as ManagedKafkaStreamReader

_NAMES = {
    "claiming": "group_claims",
    "claims.chains": "ClaimStore ObjectClaims",
    "claims.delta": "DeltaClaims",
    "claims.group": "GroupClaims",
    "claims.iceberg": "IcebergClaims",
    "claims.log": "ClaimLog",
    "claims.sql": "SqlClaims",
    "events": "PageViews",
    "lag": "LagListener SourceLag",
    "pageviews": "PageViewCounts",
    "plans": "ColumnsUsed columns_used",
    "progress": "ProgressListener",
    "reports": "progress_of",
    "session": "make_session",
    "source": "ManagedKafkaReader ManagedKafkaSource ManagedKafkaStreamReader",
}
__all__, __getattr__ = lazily(__name__, _NAMES)
