"""Names that programs use, and arguments that are wrong."""

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, errors, module, outcome, say

for name in (
    "Broker",
    "Cluster",
    "Partition",
    "SimpleConsumer",
    "BalancedConsumer",
    "ManagedBalancedConsumer",
    "Topic",
):
    say(f"import {name}", hasattr(module, name))
for name in ("SslConfig", "RangeProtocol", "RoundRobinProtocol", "KafkaClient"):
    say(f"import {name}", hasattr(module, name))
for name in ("ConsumerStoppedException", "SocketDisconnectedError", "LeaderNotAvailable", "NoBrokersAvailableError"):
    say(f"error {name}", issubclass(getattr(errors, name), errors.KafkaException))

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]
simple = topic.get_simple_consumer(GROUP, partitions=[topic.partitions[0]], consumer_timeout_ms=TIMEOUT)
balanced = topic.get_balanced_consumer(GROUP, managed=True, consumer_timeout_ms=TIMEOUT)
for kind, consumer in (("simple", simple), ("balanced", balanced)):
    for name in ("topic", "partitions", "held_offsets", "consume", "commit_offsets", "reset_offsets", "start", "stop"):
        say(f"{kind}.{name}", hasattr(consumer, name))
    for name in ("_running", "_consumer_group", "_generation_id", "_consumer_id", "_partitions", "_topic"):
        say(f"{kind}.{name}", hasattr(consumer, name))
    say(f"{kind} topic", consumer.topic is topic)
for name in ("fetch_offsets", "consumer_id", "generation_id", "fetch", "partition_cycle"):
    say(f"simple.{name}", hasattr(simple, name))
for name in ("_rebalance", "_setup_internal_consumer", "_update_member_assignment"):
    say(f"balanced.{name}", hasattr(balanced, name))
say("the group", simple._consumer_group)
say("simple ids", (simple.consumer_id, simple.generation_id))
say("balanced ids", (type(balanced._consumer_id).__name__, balanced._generation_id > 0))
message = simple.consume()
for name in ("value", "partition_key", "offset", "partition_id", "timestamp", "compression_type", "protocol_version"):
    say(f"message.{name}", getattr(message, name))
simple.stop()
balanced.stop()

get, managed = topic.get_simple_consumer, topic.get_balanced_consumer
later = {"auto_start": False}
for name, value in (
    ("queued_max_messages", 0),
    ("queued_max_messages", "5"),
    ("fetch_message_max_bytes", -1),
    ("rebalance_backoff_ms", 0),
    ("consumer_timeout_ms", -5),
    ("auto_offset_reset", 5),
    ("no_such_argument", 5),
):
    if name != "rebalance_backoff_ms":
        made = outcome(get, **later, **{name: value})
        say(f"simple {name}={value!r}", made if isinstance(made, str) else "accepted")
    made = outcome(managed, GROUP, managed=True, **later, **{name: value})
    say(f"balanced {name}={value!r}", made if isinstance(made, str) else "accepted")
for group in ("", 5, None, "gr\xfcn"):
    made = outcome(get, consumer_group=group, **later)
    say(f"simple group {group!a}", made if isinstance(made, str) else "accepted")
    made = outcome(managed, group, managed=True, **later)
    say(f"balanced group {group!a}", made if isinstance(made, str) else "accepted")
made = outcome(get, auto_commit_enable=True, **later)
say("auto_commit_enable without a group", made if isinstance(made, str) else "accepted")
say("nobody there", outcome(KafkaClient, hosts="127.0.0.1:1"))
