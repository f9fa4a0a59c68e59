"""Decides when a silent connection counts as dead, long before its request's time-out."""

from __future__ import annotations

from typing import Any, Final, Mapping

from managedconsumer.wire.protocol import schemas

#: Brokers respond to these at once, to a Fetch after its wait. Writes for them (commits, the state of a group) they
#: give up after 5 s (``offsets.commit.timeout.ms``), and say so.
_ANSWERED_SOON: Final = frozenset(
    api.key
    for api in (
        *(schemas.FETCH, schemas.METADATA, schemas.FIND_COORDINATOR, schemas.HEARTBEAT, schemas.OFFSET_COMMIT),
        *(schemas.OFFSET_FETCH, schemas.LIST_OFFSETS, schemas.OFFSET_FOR_LEADER_EPOCH),
        schemas.CONSUMER_GROUP_HEARTBEAT,
    )
)
#: How long (seconds) the first byte of such a response may take.
SOON_S: Final = 6.0
NEVER: Final = float("inf")


def overdue_after(api: schemas.Api, body: Mapping[str, Any] | bytes, slowest: float | None) -> float:
    """Return after how many seconds without a byte the connection of a request counts as dead.

    ``slowest``: how long (seconds) the slowest response over this connection took. A slow broker gets twice that. None:
    it has not responded yet. It gets the whole time-out then, so a broker that is slower than :data:`SOON_S` costs one
    new connection, not one for each request.
    """
    if slowest is None or api.key not in _ANSWERED_SOON:
        return NEVER
    after = max(SOON_S, 2.0 * slowest)
    return after + body["max_wait_ms"] / 1000.0 if api is schemas.FETCH and not isinstance(body, bytes) else after
