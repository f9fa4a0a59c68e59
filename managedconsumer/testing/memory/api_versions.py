"""The API versions of the in-memory broker: those with topic names in commits."""

from __future__ import annotations

from typing import Iterable, Mapping

Ranges = Mapping[int, tuple[int, int]]

API_VERSIONS_KEY, HANDSHAKE_KEY, AUTHENTICATE_KEY, MODERN_HEARTBEAT_KEY = 18, 17, 36, 68
#: First and last version, by the request's key.
VERSIONS: dict[int, tuple[int, int]] = {
    0: (3, 9),  # Produce
    1: (4, 17),  # Fetch
    2: (1, 7),  # ListOffsets
    3: (1, 12),  # Metadata
    8: (2, 9),  # OffsetCommit
    9: (1, 9),  # OffsetFetch
    10: (0, 4),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 6),  # DescribeGroups
    16: (0, 5),  # ListGroups
    HANDSHAKE_KEY: (0, 1),
    API_VERSIONS_KEY: (0, 3),
    19: (2, 6),  # CreateTopics
    20: (1, 5),  # DeleteTopics
    21: (0, 2),  # DeleteRecords
    22: (0, 5),  # InitProducerId
    23: (2, 4),  # OffsetForLeaderEpoch
    24: (0, 3),  # AddPartitionsToTxn
    25: (0, 3),  # AddOffsetsToTxn
    26: (0, 3),  # EndTxn
    28: (0, 3),  # TxnOffsetCommit
    AUTHENTICATE_KEY: (0, 2),
    42: (0, 2),  # DeleteGroups
    47: (0, 0),  # OffsetDelete
    60: (0, 1),  # DescribeCluster
    MODERN_HEARTBEAT_KEY: (0, 1),
    69: (0, 1),  # ConsumerGroupDescribe
}


def api_keys(ranges: Ranges, unheard_of: Iterable[int] = ()) -> list[dict[str, int]]:
    """Return the list for ApiVersions; ``unheard_of``: further keys."""
    listed = {**ranges, **dict.fromkeys(unheard_of, (0, 0))}
    return [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in listed.items()]
