"""Claim logs: which of the batches that were written count. See :mod:`managedconsumer.spark.claims.log`."""
