"""The schema table, what a group's member says.  How to read it: :mod:`managedconsumer.wire.protocol.table`."""

from __future__ import annotations

from managedconsumer.wire.protocol.api import Api

FIND_COORDINATOR = Api(
    "FindCoordinator",
    10,
    versions="0-6",
    flexible="3+",
    request="""
        key               string    0-3
        key_type          int8      1+   = 0  needed
        coordinator_keys  [string]  4+
    """,
    response="""
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
    """,
)

JOIN_GROUP = Api(
    "JoinGroup",
    11,
    versions="0-9",
    flexible="6+",
    request="""
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
    """,
    response="""
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
    """,
)

SYNC_GROUP = Api(
    "SyncGroup",
    14,
    versions="0-5",
    flexible="4+",
    request="""
        group_id           string
        generation_id      int32
        member_id          string
        group_instance_id  string?  3+  = null  needed
        protocol_type      string?  5+  = null
        protocol_name      string?  5+  = null
        assignments        []           = []
            member_id      string
            assignment     bytes
    """,
    response="""
        throttle_time_ms  int32    1+  = 0
        error_code        int16        = 0
        protocol_type     string?  5+  = null
        protocol_name     string?  5+  = null
        assignment        bytes
    """,
)

HEARTBEAT = Api(
    "Heartbeat",
    12,
    versions="0-4",
    flexible="4+",
    request="""
        group_id           string
        generation_id      int32
        member_id          string
        group_instance_id  string?  3+  = null  needed
    """,
    response="""
        throttle_time_ms  int32  1+  = 0
        error_code        int16      = 0
    """,
)

LEAVE_GROUP = Api(
    "LeaveGroup",
    13,
    versions="0-5",
    flexible="4+",
    request="""
        group_id               string
        member_id              string   0-2
        members                []       3+
            member_id          string
            group_instance_id  string?       = null
            reason             string?  5+   = null
    """,
    response="""
        throttle_time_ms       int32    1+  = 0
        error_code             int16        = 0
        members                []       3+    needed
            member_id          string
            group_instance_id  string?
            error_code         int16        = 0
    """,
)

OFFSET_COMMIT = Api(
    "OffsetCommit",
    8,
    versions="2-10",
    flexible="8+",
    request="""
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
    """,
    response="""
        throttle_time_ms         int32   3+   = 0
        topics                   []
            name                 string  2-9
            topic_id             uuid    10+
            partitions           []
                partition_index  int32
                error_code       int16        = 0
    """,
)

OFFSET_FETCH = Api(
    "OffsetFetch",
    9,
    versions="1-10",
    flexible="6+",
    request="""
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
    """,
    response="""
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
    """,
)

CONSUMER_GROUP_HEARTBEAT = Api(
    "ConsumerGroupHeartbeat",
    68,
    versions="0-1",
    flexible="0+",
    since="4.0 (KIP-848; in 3.7 to 3.9 as a preview that is off by default)",
    request="""
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
    """,
    response="""
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
    """,
)
