"""Profiles of products that speak Kafka's protocol and are not Kafka: ``MemoryBroker(quirks=...)``. Data only.

Behind each line is its source, read in November 2026. None of these products has been tried itself.
"""

from __future__ import annotations

from typing import Mapping

from managedconsumer.testing.memory.api_versions import MODERN_HEARTBEAT_KEY, VERSIONS, Ranges
from managedconsumer.values import NamedTuple

#: What a broker without KIP-848 does not answer.
NO_KIP_848 = (MODERN_HEARTBEAT_KEY, 69)


class Quirks(NamedTuple):
    #: The highest version of a request, by its key, where it is below the in-memory broker's.
    highest: Mapping[int, int] = {}
    #: The keys of requests that it does not answer.
    without: tuple[int, ...] = ()
    #: Further keys that its ApiVersions lists.
    unheard_of: tuple[int, ...] = ()
    #: It hangs up on an ApiVersions that is too new (Kafka answers in version 0, KIP-511).
    hangs_up: bool = False
    #: Each node leads and coordinates everything, and says so when it is asked.
    stateless: bool = False
    #: All nodes have the address of the first one.
    one_address: bool = False
    #: The newest aborted transaction comes first, and readers of uncommitted messages get the list, too.
    odd_aborted: bool = False
    #: Fields that say the same in every answer.
    told: Mapping[str, int] = {}

    def ranges(self) -> Ranges:
        """Return first and last version, by the request's key."""
        known = {key: (low, min(high, self.highest.get(key, high))) for key, (low, high) in VERSIONS.items()}
        return {key: each for key, each in known.items() if key not in self.without}


PROFILES: Mapping[str, Quirks] = {
    "event-hubs": Quirks(
        # What it answers to ApiVersions: oliveigah/klife#13; Metadata 5: azure-event-hubs-emulator-installer#72.
        highest={0: 7, 1: 6, 3: 5, 8: 8, 9: 8, 10: 4, 11: 9, 12: 4, 13: 5, 18: 3},
        # Azure/azure-event-hubs-for-kafka#209: no transactions. KIP-848 is not in the list of klife#13.
        without=(24, 25, 26, 28, *NO_KIP_848),
        hangs_up=True,  # twmb/franz-go#1022, dpkp/kafka-python#2602: connection reset
        stateless=True,  # a namespace is one endpoint: its Metadata name one broker, 0 (log in twmb/franz-go#1312)
        one_address=True,
        # twmb/franz-go#1203: it offers the requests with leader epochs, and says -1 in all of them. Microsoft's guide
        # to problems with Apache Kafka clients: what is above the quota waits, and the answer says how long.
        told={"leader_epoch": -1, "committed_leader_epoch": -1, "throttle_time_ms": 20},
    ),
    "redpanda": Quirks(
        # redpanda-data/redpanda, src/v/kafka/server/handlers/*.h (24.3): versions, and which requests it has.
        highest={0: 7, 1: 11, 2: 4, 3: 8, 8: 8, 9: 7, 10: 3, 11: 6, 14: 4, 15: 5, 16: 4, 22: 3},
        without=(60, *NO_KIP_848),
        odd_aborted=True,  # franz-go's CHANGELOG: 1.21.4 (order), 1.18 (also for read_uncommitted)
    ),
    "warpstream": Quirks(
        # docs.warpstream.com, "Protocol and Feature Support": the requests that it has; these are not among them.
        without=(21, 23, *NO_KIP_848),
        stateless=True,  # the same, "Life of a Request": an arbitrary agent is the one leader of all partitions
        told={"leader_epoch": -1, "committed_leader_epoch": -1},  # follows from a leader that differs by client
    ),
    "confluent-cloud": Quirks(
        unheard_of=(10_000, 32_767),  # franz-go's CHANGELOG: "Confluent replies with odd keys sometimes", max int16
        told={"throttle_time_ms": 20},  # docs.confluent.io, "Request rate limits": clients are throttled
    ),
}
