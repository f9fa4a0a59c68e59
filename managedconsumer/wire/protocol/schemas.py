"""Every request that this client, its tools or its tests send, Kafka 2.1 to 4.3.

The table itself is in the four ``schemas_*`` files, which say where a request has no sender yet.

First versions are those that Kafka 4 still answers (KIP-896), which every broker since 2.1 answers too; last versions
are Kafka 4.3's.
"""

from __future__ import annotations

from typing import Final

from managedconsumer.wire.protocol.api import Api as Api
from managedconsumer.wire.protocol.schemas_admin import CONSUMER_GROUP_DESCRIBE as CONSUMER_GROUP_DESCRIBE
from managedconsumer.wire.protocol.schemas_admin import CREATE_TOPICS as CREATE_TOPICS
from managedconsumer.wire.protocol.schemas_admin import DELETE_GROUPS as DELETE_GROUPS
from managedconsumer.wire.protocol.schemas_admin import DELETE_RECORDS as DELETE_RECORDS
from managedconsumer.wire.protocol.schemas_admin import DELETE_TOPICS as DELETE_TOPICS
from managedconsumer.wire.protocol.schemas_admin import DESCRIBE_GROUPS as DESCRIBE_GROUPS
from managedconsumer.wire.protocol.schemas_admin import LIST_GROUPS as LIST_GROUPS
from managedconsumer.wire.protocol.schemas_admin import OFFSET_DELETE as OFFSET_DELETE
from managedconsumer.wire.protocol.schemas_cluster import API_VERSIONS as API_VERSIONS
from managedconsumer.wire.protocol.schemas_cluster import DESCRIBE_CLUSTER as DESCRIBE_CLUSTER
from managedconsumer.wire.protocol.schemas_cluster import METADATA as METADATA
from managedconsumer.wire.protocol.schemas_cluster import SASL_AUTHENTICATE as SASL_AUTHENTICATE
from managedconsumer.wire.protocol.schemas_cluster import SASL_HANDSHAKE as SASL_HANDSHAKE
from managedconsumer.wire.protocol.schemas_fetching import FETCH as FETCH
from managedconsumer.wire.protocol.schemas_fetching import INIT_PRODUCER_ID as INIT_PRODUCER_ID
from managedconsumer.wire.protocol.schemas_fetching import LIST_OFFSETS as LIST_OFFSETS
from managedconsumer.wire.protocol.schemas_fetching import OFFSET_FOR_LEADER_EPOCH as OFFSET_FOR_LEADER_EPOCH
from managedconsumer.wire.protocol.schemas_fetching import PRODUCE as PRODUCE
from managedconsumer.wire.protocol.schemas_groups import CONSUMER_GROUP_HEARTBEAT as CONSUMER_GROUP_HEARTBEAT
from managedconsumer.wire.protocol.schemas_groups import FIND_COORDINATOR as FIND_COORDINATOR
from managedconsumer.wire.protocol.schemas_groups import HEARTBEAT as HEARTBEAT
from managedconsumer.wire.protocol.schemas_groups import JOIN_GROUP as JOIN_GROUP
from managedconsumer.wire.protocol.schemas_groups import LEAVE_GROUP as LEAVE_GROUP
from managedconsumer.wire.protocol.schemas_groups import OFFSET_COMMIT as OFFSET_COMMIT
from managedconsumer.wire.protocol.schemas_groups import OFFSET_FETCH as OFFSET_FETCH
from managedconsumer.wire.protocol.schemas_groups import SYNC_GROUP as SYNC_GROUP

APIS: Final[dict[int, Api]] = {each.key: each for each in tuple(globals().values()) if isinstance(each, Api)}
"""Kafka's api key -> request."""
