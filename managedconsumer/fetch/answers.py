"""Which error codes of a partition are transient, and which are raised for the user. Pure.

Fetch, ListOffsets and OffsetForLeaderEpoch answer for each partition. The decisions are those of Kafka's Java consumer
(``FetchCollector``, ``OffsetFetcherUtils``), and of :mod:`managedconsumer.errors` where Java raises "unexpected error
code".
"""

from __future__ import annotations

from managedconsumer import errors as err


def may_pass(error: err.ProtocolClientError) -> bool:
    """True when the same request may get a better answer later, without the user's help.

    UNKNOWN_SERVER_ERROR counts: a broker that cannot read a segment from tiered storage has no other code for it, and
    Java asks again, too. So do codes that this release does not know.
    """
    return error.retriable or error.refresh_metadata or isinstance(error, err.UnknownError)
