"""Which claim log a URL names. Opens nothing, but says what is missing."""

from __future__ import annotations

from managedconsumer.spark.claims.chains import ObjectClaims
from managedconsumer.spark.claims.log import ClaimLog
from managedconsumer.spark.claims.sql import SCHEMES, SqlClaims
from managedconsumer.stores.objects import objects_at


def log_at(place: str) -> ClaimLog:
    """The claim log that a path or URL names. Raises ConfigurationError, MissingPackageError or ValueError."""
    scheme = place.split("://", 1)[0] if "://" in place else ""
    if scheme in SCHEMES:
        return SqlClaims(place)
    if scheme.split("+")[0] == "delta":
        from managedconsumer.spark.claims.delta import DeltaClaims

        return DeltaClaims(place)
    if scheme == "iceberg":
        from managedconsumer.spark.claims.iceberg import IcebergClaims

        return IcebergClaims(place)
    return ObjectClaims(objects_at(place))
