"""Claim logs, which say which of the written batches count. See :mod:`managedconsumer.spark.claims.log`."""
