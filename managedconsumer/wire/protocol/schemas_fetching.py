"""The schema table, records and offsets in logs.  How to read it: :mod:`managedconsumer.wire.protocol.table`."""

from __future__ import annotations

from managedconsumer.wire.protocol.api import Api

FETCH = Api(
    "Fetch",
    1,
    versions="4-18",
    flexible="12+",
    request="""
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
    """,
    response="""
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
    """,
)

LIST_OFFSETS = Api(
    "ListOffsets",
    2,
    versions="1-11",
    flexible="6+",
    request="""
        replica_id                    int32        = -1
        isolation_level               int8    2+   = 0  needed
        topics                        []
            name                      string
            partitions                []
                partition_index       int32
                current_leader_epoch  int32   4+   = -1
                timestamp             int64
        timeout_ms                    int32   10+  = 30000
    """,
    response="""
        throttle_time_ms         int32   2+  = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                error_code       int16       = 0
                timestamp        int64       = -1
                offset           int64       = -1
                leader_epoch     int32   4+  = -1  needed
    """,
)

OFFSET_FOR_LEADER_EPOCH = Api(
    "OffsetForLeaderEpoch",
    23,
    versions="2-4",
    flexible="4+",
    request="""
        replica_id                    int32   3+  = -1
        topics                        []
            topic                     string
            partitions                []
                partition             int32
                current_leader_epoch  int32       = -1
                leader_epoch          int32
    """,
    response="""
        throttle_time_ms      int32   = 0
        topics                []
            topic             string
            partitions        []
                error_code    int16   = 0
                partition     int32
                leader_epoch  int32   = -1
                end_offset    int64   = -1
    """,
)

PRODUCE = Api(
    "Produce",
    0,
    versions="3-13",
    flexible="9+",
    request="""
        transactional_id    string?         = null
        acks                int16
        timeout_ms          int32
        topic_data          []
            name            string    3-12
            topic_id        uuid      13+
            partition_data  []
                index       int32
                records     records?
    """,
    response="""
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
    """,
)

# Not sent by us: the in-memory broker answers it, as other clients' producers ask for it.
INIT_PRODUCER_ID = Api(
    "InitProducerId",
    22,
    versions="0-5",
    flexible="2+",
    request="""
        transactional_id        string?
        transaction_timeout_ms  int32
        producer_id             int64    3+  = -1  needed
        producer_epoch          int16    3+  = -1  needed
    """,
    response="""
        throttle_time_ms  int32  = 0
        error_code        int16  = 0
        producer_id       int64  = -1
        producer_epoch    int16
    """,
)
