"""pykafka's objects, ours: one place to import them from."""

from __future__ import annotations

from managedconsumer.compat.client import KafkaClient as KafkaClient
from managedconsumer.compat.cluster import Cluster as Cluster
from managedconsumer.compat.cluster import TopicDict as TopicDict
from managedconsumer.compat.parts import Broker as Broker
from managedconsumer.compat.parts import OffsetPartitionResponse as OffsetPartitionResponse
from managedconsumer.compat.parts import Partition as Partition
from managedconsumer.compat.parts import Topic as Topic
from managedconsumer.compat.tls import SslConfig as SslConfig
