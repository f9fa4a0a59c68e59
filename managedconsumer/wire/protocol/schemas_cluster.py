"""The schema table, who is there, and who are we.  How to read it: :mod:`managedconsumer.wire.protocol.table`."""

from __future__ import annotations

from managedconsumer.wire.protocol.api import Api

API_VERSIONS = Api(
    "ApiVersions",
    18,
    versions="0-4",
    flexible="3+",
    request="""
        client_software_name     string  3+
        client_software_version  string  3+
    """,
    response="""
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
    """,
)

SASL_HANDSHAKE = Api(
    "SaslHandshake",
    17,
    versions="0-1",
    flexible="none",
    request="""
        mechanism  string
    """,
    response="""
        error_code  int16     = 0
        mechanisms  [string]
    """,
)

SASL_AUTHENTICATE = Api(
    "SaslAuthenticate",
    36,
    versions="0-2",
    flexible="2+",
    request="""
        auth_bytes  bytes
    """,
    response="""
        error_code           int16        = 0
        error_message        string?      = null
        auth_bytes           bytes
        session_lifetime_ms  int64    1+  = 0
    """,
)

METADATA = Api(
    "Metadata",
    3,
    versions="0-13",
    # Below it asking about a topic may create the topic, and nothing in the request can forbid that.
    asked_from=4,
    flexible="9+",
    request="""
        topics                                 []?1+
            topic_id                           uuid        10+   = zero
            name                               string?10+
        allow_auto_topic_creation              bool        4+    = true   needed
        include_cluster_authorized_operations  bool        8-10  = false  needed
        include_topic_authorized_operations    bool        8+    = false  needed
    """,
    response="""
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
    """,
)

# Not sent yet: for a command that examines a cluster.
DESCRIBE_CLUSTER = Api(
    "DescribeCluster",
    60,
    versions="0-2",
    flexible="0+",
    since="2.8",
    request="""
        include_cluster_authorized_operations  bool      = false
        endpoint_type                          int8  1+  = 1      needed
        include_fenced_brokers                 bool  2+  = false  needed
    """,
    response="""
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
    """,
)
