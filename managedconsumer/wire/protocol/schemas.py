"""The schema table: every request that this client, its tools or its tests send, Kafka 2.1 to 4.3.

A paragraph of the table is a request: its name, key, versions, and flexible versions, then its fields
(:mod:`managedconsumer.wire.protocol.table`). :class:`~managedconsumer.wire.protocol.api.Api` explains ``since`` and
``asked_from``. First versions are those that Kafka 4 still answers (KIP-896), as does every broker since 2.1; last
versions are Kafka 4.3's.
"""

from __future__ import annotations

from typing import Final

from managedconsumer.wire.protocol.api import Api as Api

_TABLE: Final = """
# The cluster and the login.

ApiVersions 18  versions 0-4  flexible 3+
    request
        client_software_name     string  3+
        client_software_version  string  3+
    response
        error_code                int16              = 0
        api_keys                  []
            api_key               int16
            min_version           int16
            max_version           int16
        throttle_time_ms          int32   1+         = 0
        supported_features        []      3+  tag 0  = []
            name                  string
            min_version           int16
            max_version           int16
        finalized_features_epoch  int64   3+  tag 1  = -1
        finalized_features        []      3+  tag 2  = []
            name                  string
            max_version_level     int16
            min_version_level     int16
        zk_migration_ready        bool    3+  tag 3  = false

SaslHandshake 17  versions 0-1  flexible none
    request
        mechanism  string
    response
        error_code  int16     = 0
        mechanisms  [string]

SaslAuthenticate 36  versions 0-2  flexible 2+
    request
        auth_bytes  bytes
    response
        error_code           int16        = 0
        error_message        string?      = null
        auth_bytes           bytes
        session_lifetime_ms  int64    1+  = 0

Metadata 3  versions 0-13  flexible 9+
    asked_from 4  # asking in an older version may create the topic, and nothing in the request can forbid that
    request
        topics                                 []?1+
            topic_id                           uuid        10+   = zero
            name                               string?10+
        allow_auto_topic_creation              bool        4+    = true   needed
        include_cluster_authorized_operations  bool        8-10  = false  needed
        include_topic_authorized_operations    bool        8+    = false  needed
    response
        throttle_time_ms                 int32       3+    = 0
        brokers                          []
            node_id                      int32
            host                         string
            port                         int32
            rack                         string?     1+    = null
        cluster_id                       string?     2+    = null
        controller_id                    int32       1+    = -1
        topics                           []
            error_code                   int16             = 0
            name                         string?12+
            topic_id                     uuid        10+   = zero
            is_internal                  bool        1+    = false
            partitions                   []
                error_code               int16             = 0
                partition_index          int32
                leader_id                int32
                leader_epoch             int32       7+    = -1
                replica_nodes            [int32]
                isr_nodes                [int32]
                offline_replicas         [int32]     5+    = []
            topic_authorized_operations  int32       8+    = -2147483648  needed
        cluster_authorized_operations    int32       8-10  = -2147483648  needed
        error_code                       int16       13+   = 0

# Only other clients send it, to the in-memory broker.
DescribeCluster 60  versions 0-2  flexible 0+
    since 2.8
    request
        include_cluster_authorized_operations  bool      = false
        endpoint_type                          int8  1+  = 1      needed
        include_fenced_brokers                 bool  2+  = false  needed
    response
        throttle_time_ms               int32        = 0
        error_code                     int16        = 0
        error_message                  string?      = null
        endpoint_type                  int8     1+  = 1      needed
        cluster_id                     string
        controller_id                  int32        = -1
        brokers                        []
            broker_id                  int32
            host                       string
            port                       int32
            rack                       string?      = null
            is_fenced                  bool     2+  = false  needed
        cluster_authorized_operations  int32        = -2147483648

# Records and offsets in logs.

Fetch 1  versions 4-18  flexible 12+
    request
        cluster_id                    string?  12+   tag 0  = null
        replica_id                    int32    4-14         = -1  needed
        replica_state                 {}       15+   tag 1        needed
            replica_id                int32                 = -1
            replica_epoch             int64                 = -1
        max_wait_ms                   int32
        min_bytes                     int32
        max_bytes                     int32                 = 2147483647
        isolation_level               int8                  = 0
        session_id                    int32    7+           = 0
        session_epoch                 int32    7+           = -1
        topics                        []
            topic                     string   4-12
            topic_id                  uuid     13+
            partitions                []
                partition             int32
                current_leader_epoch  int32    9+           = -1
                fetch_offset          int64
                last_fetched_epoch    int32    12+          = -1  needed
                log_start_offset      int64    5+           = -1
                partition_max_bytes   int32
                replica_directory_id  uuid     17+   tag 0
                high_watermark        int64    18+   tag 1  = 9223372036854775807
        forgotten_topics_data         []       7+           = []  needed
            topic                     string   7-12
            topic_id                  uuid     13+
            partitions                [int32]
        rack_id                       string   11+          = ""
    response
        throttle_time_ms                int32                  = 0
        error_code                      int16     7+           = 0
        session_id                      int32     7+           = 0   needed
        responses                       []
            topic                       string    4-12
            topic_id                    uuid      13+
            partitions                  []
                partition_index         int32
                error_code              int16                  = 0
                high_watermark          int64
                last_stable_offset      int64                  = -1
                log_start_offset        int64     5+           = -1
                diverging_epoch         {}        12+   tag 0        needed
                    epoch               int32                  = -1
                    end_offset          int64                  = -1
                current_leader          {}        12+   tag 1        needed
                    leader_id           int32                  = -1
                    leader_epoch        int32                  = -1
                snapshot_id             {}        12+   tag 2        needed
                    end_offset          int64                  = -1
                    epoch               int32                  = -1
                aborted_transactions    []?                    = null
                    producer_id         int64
                    first_offset        int64
                preferred_read_replica  int32     11+          = -1  needed
                records                 records?               = null
        node_endpoints                  []        16+   tag 0  = []  needed
            node_id                     int32
            host                        string
            port                        int32
            rack                        string?                = null

ListOffsets 2  versions 1-11  flexible 6+
    request
        replica_id                    int32        = -1
        isolation_level               int8    2+   = 0  needed
        topics                        []
            name                      string
            partitions                []
                partition_index       int32
                current_leader_epoch  int32   4+   = -1
                timestamp             int64
        timeout_ms                    int32   10+  = 30000
    response
        throttle_time_ms         int32   2+  = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                error_code       int16       = 0
                timestamp        int64       = -1
                offset           int64       = -1
                leader_epoch     int32   4+  = -1  needed

OffsetForLeaderEpoch 23  versions 2-4  flexible 4+
    request
        replica_id                    int32   3+  = -1
        topics                        []
            topic                     string
            partitions                []
                partition             int32
                current_leader_epoch  int32       = -1
                leader_epoch          int32
    response
        throttle_time_ms      int32   = 0
        topics                []
            topic             string
            partitions        []
                error_code    int16   = 0
                partition     int32
                leader_epoch  int32   = -1
                end_offset    int64   = -1

Produce 0  versions 3-13  flexible 9+
    request
        transactional_id    string?         = null
        acks                int16
        timeout_ms          int32
        topic_data          []
            name            string    3-12
            topic_id        uuid      13+
            partition_data  []
                index       int32
                records     records?
    response
        responses                              []
            name                               string   3-12
            topic_id                           uuid     13+
            partition_responses                []
                index                          int32
                error_code                     int16                 = 0
                base_offset                    int64
                log_append_time_ms             int64                 = -1
                log_start_offset               int64    5+           = -1
                record_errors                  []       8+
                    batch_index                int32
                    batch_index_error_message  string?               = null
                error_message                  string?  8+           = null
                current_leader                 {}       10+   tag 0        needed
                    leader_id                  int32                 = -1
                    leader_epoch               int32                 = -1
        throttle_time_ms                       int32                 = 0
        node_endpoints                         []       10+   tag 0  = []  needed
            node_id                            int32
            host                               string
            port                               int32
            rack                               string?               = null

# Other clients' producers send this one and those of transactions to the in-memory broker.
InitProducerId 22  versions 0-5  flexible 2+
    request
        transactional_id        string?
        transaction_timeout_ms  int32
        producer_id             int64    3+  = -1  needed
        producer_epoch          int16    3+  = -1  needed
    response
        throttle_time_ms  int32  = 0
        error_code        int16  = 0
        producer_id       int64  = -1
        producer_epoch    int16

AddPartitionsToTxn 24  versions 0-5  flexible 3+
    request
        transactions                   []        4+
            transactional_id           string
            producer_id                int64
            producer_epoch             int16
            verify_only                bool           = false
            topics                     []
                name                   string
                partitions             [int32]
        v3_and_below_transactional_id  string    0-3
        v3_and_below_producer_id       int64     0-3
        v3_and_below_producer_epoch    int16     0-3
        v3_and_below_topics            []        0-3
            name                       string
            partitions                 [int32]
    response
        throttle_time_ms                  int32        = 0
        error_code                        int16   4+   = 0
        results_by_transaction            []      4+
            transactional_id              string
            topic_results                 []
                name                      string
                results_by_partition      []
                    partition_index       int32
                    partition_error_code  int16        = 0
        results_by_topic_v3_and_below     []      0-3
            name                          string
            results_by_partition          []
                partition_index           int32
                partition_error_code      int16        = 0

AddOffsetsToTxn 25  versions 0-4  flexible 3+
    request
        transactional_id  string
        producer_id       int64
        producer_epoch    int16
        group_id          string
    response
        throttle_time_ms  int32  = 0
        error_code        int16  = 0

EndTxn 26  versions 0-5  flexible 3+
    request
        transactional_id  string
        producer_id       int64
        producer_epoch    int16
        committed         bool
    response
        throttle_time_ms  int32      = 0
        error_code        int16      = 0
        producer_id       int64  5+  = -1
        producer_epoch    int16  5+  = -1

# Members of groups, committed offsets.

FindCoordinator 10  versions 0-6  flexible 3+
    request
        key               string    0-3
        key_type          int8      1+   = 0  needed
        coordinator_keys  [string]  4+
    response
        throttle_time_ms   int32    1+   = 0
        error_code         int16    0-3  = 0  needed
        error_message      string?  1-3  = null
        node_id            int32    0-3       needed
        host               string   0-3       needed
        port               int32    0-3       needed
        coordinators       []       4+        needed
            key            string
            node_id        int32
            host           string
            port           int32
            error_code     int16         = 0
            error_message  string?       = null

JoinGroup 11  versions 0-9  flexible 6+
    request
        group_id              string
        session_timeout_ms    int32
        rebalance_timeout_ms  int32    1+  = -1
        member_id             string
        group_instance_id     string?  5+  = null  needed
        protocol_type         string
        protocols             []
            name              string
            metadata          bytes
        reason                string?  8+  = null
    response
        throttle_time_ms       int32      2+  = 0
        error_code             int16          = 0
        generation_id          int32          = -1
        protocol_type          string?    7+  = null
        protocol_name          string?7+
        leader                 string
        skip_assignment        bool       9+  = false  needed
        member_id              string
        members                []
            member_id          string
            group_instance_id  string?    5+  = null
            metadata           bytes

SyncGroup 14  versions 0-5  flexible 4+
    request
        group_id           string
        generation_id      int32
        member_id          string
        group_instance_id  string?  3+  = null  needed
        protocol_type      string?  5+  = null
        protocol_name      string?  5+  = null
        assignments        []           = []
            member_id      string
            assignment     bytes
    response
        throttle_time_ms  int32    1+  = 0
        error_code        int16        = 0
        protocol_type     string?  5+  = null
        protocol_name     string?  5+  = null
        assignment        bytes

Heartbeat 12  versions 0-4  flexible 4+
    request
        group_id           string
        generation_id      int32
        member_id          string
        group_instance_id  string?  3+  = null  needed
    response
        throttle_time_ms  int32  1+  = 0
        error_code        int16      = 0

LeaveGroup 13  versions 0-5  flexible 4+
    request
        group_id               string
        member_id              string   0-2
        members                []       3+
            member_id          string
            group_instance_id  string?       = null
            reason             string?  5+   = null
    response
        throttle_time_ms       int32    1+  = 0
        error_code             int16        = 0
        members                []       3+    needed
            member_id          string
            group_instance_id  string?
            error_code         int16        = 0

OffsetCommit 8  versions 2-10  flexible 8+
    request
        group_id                        string
        generation_id_or_member_epoch   int32         = -1
        member_id                       string
        group_instance_id               string?  7+   = null  needed
        retention_time_ms               int64    2-4  = -1
        topics                          []
            name                        string   2-9
            topic_id                    uuid     10+
            partitions                  []
                partition_index         int32
                committed_offset        int64
                committed_leader_epoch  int32    6+   = -1
                committed_metadata      string?       = ""
    response
        throttle_time_ms         int32   3+   = 0
        topics                   []
            name                 string  2-9
            topic_id             uuid    10+
            partitions           []
                partition_index  int32
                error_code       int16        = 0

TxnOffsetCommit 28  versions 0-5  flexible 3+
    request
        transactional_id                string
        group_id                        string
        producer_id                     int64
        producer_epoch                  int16
        generation_id                   int32    3+  = -1
        member_id                       string   3+  = ""
        group_instance_id               string?  3+  = null
        topics                          []
            name                        string
            partitions                  []
                partition_index         int32
                committed_offset        int64
                committed_leader_epoch  int32    2+  = -1
                committed_metadata      string?
    response
        throttle_time_ms         int32   = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                error_code       int16   = 0

OffsetFetch 9  versions 1-10  flexible 6+
    request
        group_id                   string   1-7
        topics                     []?2+    1-7
            name                   string
            partition_indexes      [int32]
        groups                     []       8+
            group_id               string
            member_id              string?  9+   = null
            member_epoch           int32    9+   = -1
            topics                 []?
                name               string   8-9
                topic_id           uuid     10+
                partition_indexes  [int32]
        require_stable             bool     7+   = false
    response
        throttle_time_ms                    int32    3+   = 0
        topics                              []       1-7    needed
            name                            string
            partitions                      []
                partition_index             int32
                committed_offset            int64
                committed_leader_epoch      int32    5-7  = -1
                metadata                    string?
                error_code                  int16         = 0
        error_code                          int16    2-7  = 0
        groups                              []       8+     needed
            group_id                        string
            topics                          []
                name                        string   8-9
                topic_id                    uuid     10+
                partitions                  []
                    partition_index         int32
                    committed_offset        int64
                    committed_leader_epoch  int32         = -1
                    metadata                string?
                    error_code              int16         = 0
            error_code                      int16         = 0

ConsumerGroupHeartbeat 68  versions 0-1  flexible 0+
    since 4.0 (KIP-848; in 3.7 to 3.9 as a preview that is off by default)
    request
        group_id                string
        member_id               string
        member_epoch            int32
        instance_id             string?        = null
        rack_id                 string?        = null
        rebalance_timeout_ms    int32          = -1
        subscribed_topic_names  [string]?      = null
        subscribed_topic_regex  string?    1+  = null
        server_assignor         string?        = null
        topic_partitions        []?            = null
            topic_id            uuid
            partitions          [int32]
    response
        throttle_time_ms       int32    = 0
        error_code             int16    = 0
        error_message          string?  = null
        member_id              string?  = null
        member_epoch           int32
        heartbeat_interval_ms  int32
        assignment             {}?      = null
            topic_partitions   []
                topic_id       uuid
                partitions     [int32]

# Tools: groups and topics.

DescribeGroups 15  versions 0-6  flexible 5+
    request
        groups                         [string]
        include_authorized_operations  bool      3+  = false  needed
    response
        throttle_time_ms           int32    1+  = 0
        groups                     []
            error_code             int16        = 0
            error_message          string?  6+  = null         needed
            group_id               string
            group_state            string
            protocol_type          string
            protocol_data          string
            members                []
                member_id          string
                group_instance_id  string?  4+  = null
                client_id          string
                client_host        string
                member_metadata    bytes
                member_assignment  bytes
            authorized_operations  int32    3+  = -2147483648  needed

ListGroups 16  versions 0-5  flexible 3+
    request
        states_filter  [string]  4+  = []  needed
        types_filter   [string]  5+  = []  needed
    response
        throttle_time_ms   int32   1+  = 0
        error_code         int16       = 0
        groups             []
            group_id       string
            protocol_type  string
            group_state    string  4+
            group_type     string  5+

# For the look-up of a KIP-848 group by tools; the tests ask brokers by it.
ConsumerGroupDescribe 69  versions 0-1  flexible 0+
    since 4.0 (KIP-848)
    request
        group_ids                      [string]
        include_authorized_operations  bool      = false
    response
        throttle_time_ms                int32         = 0
        groups                          []
            error_code                  int16         = 0
            error_message               string?       = null
            group_id                    string
            group_state                 string
            group_epoch                 int32
            assignment_epoch            int32
            assignor_name               string
            members                     []
                member_id               string
                instance_id             string?       = null
                rack_id                 string?       = null
                member_epoch            int32
                client_id               string
                client_host             string
                subscribed_topic_names  [string]
                subscribed_topic_regex  string?       = null
                assignment              {}
                    topic_partitions    []
                        topic_id        uuid
                        topic_name      string
                        partitions      [int32]
                target_assignment       {}
                    topic_partitions    []
                        topic_id        uuid
                        topic_name      string
                        partitions      [int32]
                member_type             int8      1+  = -1
            authorized_operations       int32         = -2147483648

# Only other clients send it, to the in-memory broker.
DeleteGroups 42  versions 0-2  flexible 2+
    request
        groups_names  [string]
    response
        throttle_time_ms  int32   = 0
        results           []
            group_id      string
            error_code    int16   = 0

# Only other clients send it, to the in-memory broker.
OffsetDelete 47  versions 0  flexible none
    since 2.4
    request
        group_id                 string
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
    response
        error_code               int16   = 0
        throttle_time_ms         int32   = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                error_code       int16   = 0

CreateTopics 19  versions 2-7  flexible 5+
    request
        topics                   []
            name                 string
            num_partitions       int32
            replication_factor   int16
            assignments          []       = []
                partition_index  int32
                broker_ids       [int32]
            configs              []       = []
                name             string
                value            string?
        timeout_ms               int32    = 60000
        validate_only            bool     = false
    response
        throttle_time_ms             int32               = 0
        topics                       []
            name                     string
            topic_id                 uuid     7+         = zero
            error_code               int16               = 0
            error_message            string?             = null
            topic_config_error_code  int16    5+  tag 0  = 0
            num_partitions           int32    5+         = -1
            replication_factor       int16    5+         = -1
            configs                  []?      5+         = null
                name                 string
                value                string?
                read_only            bool                = false
                config_source        int8                = -1
                is_sensitive         bool                = false

# Only the dev broker sends it.
CreatePartitions 37  versions 0-3  flexible 2+
    request
        topics              []
            name            string
            count           int32
            assignments     []?      = null
                broker_ids  [int32]
        timeout_ms          int32    = 60000
        validate_only       bool     = false
    response
        throttle_time_ms   int32    = 0
        results            []
            name           string
            error_code     int16    = 0
            error_message  string?  = null

DeleteTopics 20  versions 1-6  flexible 4+
    request
        topics        []        6+     needed
            name      string?        = null
            topic_id  uuid           = zero
        topic_names   [string]  1-5
        timeout_ms    int32          = 60000
    response
        throttle_time_ms   int32          = 0
        responses          []
            name           string?6+
            topic_id       uuid       6+  = zero
            error_code     int16          = 0
            error_message  string?    5+  = null

# Only tests send it: the log's start moves.
DeleteRecords 21  versions 0-2  flexible 2+
    request
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                offset           int64
        timeout_ms               int32
    response
        throttle_time_ms         int32   = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                low_watermark    int64
                error_code       int16   = 0

# Client telemetry (KIP-714). A broker lists the two if it has a plugin for the metrics.

GetTelemetrySubscriptions 71  versions 0-0  flexible 0+
    since 3.7
    request
        client_instance_id  uuid
    response
        throttle_time_ms            int32   = 0
        error_code                  int16   = 0
        client_instance_id          uuid    = zero
        subscription_id             int32   = 0
        accepted_compression_types  [int8]  = []
        push_interval_ms            int32   = 0
        telemetry_max_bytes         int32   = 0
        delta_temporality           bool    = false
        requested_metrics           [string]  = []

PushTelemetry 72  versions 0-0  flexible 0+
    since 3.7
    request
        client_instance_id  uuid
        subscription_id     int32
        terminating         bool
        compression_type    int8
        metrics             bytes
    response
        throttle_time_ms  int32  = 0
        error_code        int16  = 0
"""


def _read(block: str) -> Api:
    """Make the request that one paragraph of the table describes."""
    head, _, rest = block.partition("\n    request\n")
    request, _, response = rest.partition("\n    response\n")
    title, *more = (line for line in head.splitlines() if not line.startswith("#"))
    name, key, _, versions, _, flexible = title.split()
    told = dict(line.split(maxsplit=1) for line in more)
    return Api(
        name,
        int(key),
        versions=versions,
        flexible=flexible,
        request=request,
        response=response,
        since=told.get("since"),
        asked_from=int(told.get("asked_from", "0").split()[0]),
    )


_APIS: Final = {each.name: each for each in map(_read, (b for b in _TABLE.strip().split("\n\n") if "\n" in b))}
APIS: Final[dict[int, Api]] = {each.key: each for each in _APIS.values()}
"""Kafka's api key -> request."""

API_VERSIONS: Final = _APIS["ApiVersions"]
SASL_HANDSHAKE: Final = _APIS["SaslHandshake"]
SASL_AUTHENTICATE: Final = _APIS["SaslAuthenticate"]
METADATA: Final = _APIS["Metadata"]
DESCRIBE_CLUSTER: Final = _APIS["DescribeCluster"]
FETCH: Final = _APIS["Fetch"]
LIST_OFFSETS: Final = _APIS["ListOffsets"]
OFFSET_FOR_LEADER_EPOCH: Final = _APIS["OffsetForLeaderEpoch"]
PRODUCE: Final = _APIS["Produce"]
INIT_PRODUCER_ID: Final = _APIS["InitProducerId"]
ADD_PARTITIONS_TO_TXN: Final = _APIS["AddPartitionsToTxn"]
ADD_OFFSETS_TO_TXN: Final = _APIS["AddOffsetsToTxn"]
END_TXN: Final = _APIS["EndTxn"]
FIND_COORDINATOR: Final = _APIS["FindCoordinator"]
JOIN_GROUP: Final = _APIS["JoinGroup"]
SYNC_GROUP: Final = _APIS["SyncGroup"]
HEARTBEAT: Final = _APIS["Heartbeat"]
LEAVE_GROUP: Final = _APIS["LeaveGroup"]
OFFSET_COMMIT: Final = _APIS["OffsetCommit"]
TXN_OFFSET_COMMIT: Final = _APIS["TxnOffsetCommit"]
OFFSET_FETCH: Final = _APIS["OffsetFetch"]
CONSUMER_GROUP_HEARTBEAT: Final = _APIS["ConsumerGroupHeartbeat"]
DESCRIBE_GROUPS: Final = _APIS["DescribeGroups"]
LIST_GROUPS: Final = _APIS["ListGroups"]
CONSUMER_GROUP_DESCRIBE: Final = _APIS["ConsumerGroupDescribe"]
DELETE_GROUPS: Final = _APIS["DeleteGroups"]
OFFSET_DELETE: Final = _APIS["OffsetDelete"]
CREATE_TOPICS: Final = _APIS["CreateTopics"]
CREATE_PARTITIONS: Final = _APIS["CreatePartitions"]
DELETE_TOPICS: Final = _APIS["DeleteTopics"]
DELETE_RECORDS: Final = _APIS["DeleteRecords"]
GET_TELEMETRY_SUBSCRIPTIONS: Final = _APIS["GetTelemetrySubscriptions"]
PUSH_TELEMETRY: Final = _APIS["PushTelemetry"]
