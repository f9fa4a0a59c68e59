"""The schema table, what tools ask: groups, and topics to make and remove.  See ``wire.protocol.table``."""

from __future__ import annotations

from managedconsumer.wire.protocol.api import Api

DESCRIBE_GROUPS = Api(
    "DescribeGroups",
    15,
    versions="0-6",
    flexible="5+",
    request="""
        groups                         [string]
        include_authorized_operations  bool      3+  = false  needed
    """,
    response="""
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
    """,
)

LIST_GROUPS = Api(
    "ListGroups",
    16,
    versions="0-5",
    flexible="3+",
    request="""
        states_filter  [string]  4+  = []  needed
        types_filter   [string]  5+  = []  needed
    """,
    response="""
        throttle_time_ms   int32   1+  = 0
        error_code         int16       = 0
        groups             []
            group_id       string
            protocol_type  string
            group_state    string  4+
            group_type     string  5+
    """,
)

# For the look-up of a KIP-848 group by tools; the tests ask brokers by it.
CONSUMER_GROUP_DESCRIBE = Api(
    "ConsumerGroupDescribe",
    69,
    versions="0-1",
    flexible="0+",
    since="4.0 (KIP-848)",
    request="""
        group_ids                      [string]
        include_authorized_operations  bool      = false
    """,
    response="""
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
    """,
)

# Not sent yet: for the administration of groups by the commands.
DELETE_GROUPS = Api(
    "DeleteGroups",
    42,
    versions="0-2",
    flexible="2+",
    request="""
        groups_names  [string]
    """,
    response="""
        throttle_time_ms  int32   = 0
        results           []
            group_id      string
            error_code    int16   = 0
    """,
)

# Not sent yet: for the administration of groups by the commands.
OFFSET_DELETE = Api(
    "OffsetDelete",
    47,
    versions="0",
    flexible="none",
    since="2.4",
    request="""
        group_id                 string
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
    """,
    response="""
        error_code               int16   = 0
        throttle_time_ms         int32   = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                error_code       int16   = 0
    """,
)

CREATE_TOPICS = Api(
    "CreateTopics",
    19,
    versions="2-7",
    flexible="5+",
    request="""
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
    """,
    response="""
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
    """,
)

DELETE_TOPICS = Api(
    "DeleteTopics",
    20,
    versions="1-6",
    flexible="4+",
    request="""
        topics        []        6+     needed
            name      string?        = null
            topic_id  uuid           = zero
        topic_names   [string]  1-5
        timeout_ms    int32          = 60000
    """,
    response="""
        throttle_time_ms   int32          = 0
        responses          []
            name           string?6+
            topic_id       uuid       6+  = zero
            error_code     int16          = 0
            error_message  string?    5+  = null
    """,
)

# Only tests send it: the log's start moves.
DELETE_RECORDS = Api(
    "DeleteRecords",
    21,
    versions="0-2",
    flexible="2+",
    request="""
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                offset           int64
        timeout_ms               int32
    """,
    response="""
        throttle_time_ms         int32   = 0
        topics                   []
            name                 string
            partitions           []
                partition_index  int32
                low_watermark    int64
                error_code       int16   = 0
    """,
)
