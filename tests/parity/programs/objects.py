"""Types and values: the client's objects, messages, offsets, and what a balanced consumer's callback gets."""

import datetime as dt

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, ordered, outcome, say

FIELDS = ("partition_id", "offset", "value", "partition_key", "timestamp", "timestamp_dt", "compression_type")
FIELDS += ("produce_attempt", "delivery_report_q")


def typed(value):
    return f"{type(value).__name__} {value!r}"


def show(what, message):
    values = [typed(getattr(message, name)) for name in FIELDS]
    say(what, [type(message).__name__, *values, len(message), bool(message)])
    say(f"{what}'s partition", (type(message.partition).__name__, message.partition.id))


def held(what, consumer):
    say(f"held {what}", typed(ordered(consumer.held_offsets)))


def next_of(consumer):
    """The next message, also when a busy machine takes longer than the consumer's time-out."""
    for _ in range(20):
        message = consumer.consume()
        if message is not None:
            return message
    return None


def iterated(consumer, count):
    """What iterations yield until there are ``count`` messages: one that ends early is begun again."""
    found = []
    for _ in range(20):
        found += [(message.partition_id, message.offset) for message in consumer]
        if len(found) >= count:
            break
    return found


def fetched(what, consumer):
    say(f"fetched {what}", sorted((partition, typed(r.offset), r.err) for partition, r in consumer.fetch_offsets()))


client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
say("brokers", sorted(type(broker.id).__name__ for broker in client.brokers.values()))
topic = client.topics[TOPIC.encode()]
first = topic.partitions[0]
say("topic", (type(topic).__name__, typed(topic.name), topic.name == TOPIC.encode()))
say("partitions", {number: type(partition).__name__ for number, partition in sorted(topic.partitions.items())})
say("leader", type(first.leader).__name__)
say("latest", {p: (type(r).__name__, r.offset, r.err) for p, r in sorted(topic.latest_available_offsets().items())})
say("earliest", {p: (r.offset, r.err) for p, r in sorted(topic.earliest_available_offsets().items())})
say("latest of one", typed(topic.partitions[1].latest_available_offset()))

consumer = topic.get_simple_consumer(partitions=[first], consumer_timeout_ms=TIMEOUT)
say("its partitions", sorted(consumer.partitions))
held("at first", consumer)
for number in range(3):
    show(f"message {number}", next_of(consumer))
held("after three", consumer)
say("iterated", iterated(consumer, 17))
say("again", [message.offset for message in consumer])
say("at the end", (consumer.consume(), consumer.consume(block=False)))
consumer.stop()

consumer = topic.get_simple_consumer(consumer_group=GROUP, partitions=[first], consumer_timeout_ms=TIMEOUT)
for target in (10, 0, -2, dt.datetime(1999, 1, 1)):
    consumer.reset_offsets([(first, target)])
    say(f"next after reset to {target}", typed(next_of(consumer).offset))
    held(f"after reset to {target}", consumer)
consumer.reset_offsets([(first, -1)])
say("next after reset to -1", consumer.consume())
consumer.commit_offsets([(first, 7)])
fetched("after a commit of 7", consumer)
say("next after it", next_of(consumer).offset)
say("commit", consumer.commit_offsets())
fetched("after a commit", consumer)
say("response", type(consumer.fetch_offsets()[0][1]).__name__)
consumer.stop()
consumer = topic.get_simple_consumer(consumer_group=GROUP, partitions=[first], consumer_timeout_ms=TIMEOUT)
say("next in a new consumer", next_of(consumer).offset)
consumer.stop()
options = {"reset_offset_on_start": True, "auto_offset_reset": -1, "consumer_timeout_ms": TIMEOUT}
consumer = topic.get_simple_consumer(
    consumer_group=GROUP, partitions=[first], deserializer=lambda value, key: (value.decode(), key), **options
)
consumer.reset_offsets([(first, 15)])
show("deserialized", next_of(consumer))
consumer.stop()

calls = []


def callback(consumer, old, new):
    calls.append((type(consumer).__name__, typed(ordered(old)), typed(ordered(new))))
    return {0: 17}


group = (GROUP + "-balanced").encode()
options = {"managed": True, "consumer_timeout_ms": TIMEOUT, "auto_commit_enable": False}
balanced = topic.get_balanced_consumer(consumer_group=group, post_rebalance_callback=callback, **options)
say("class", type(balanced).__name__)
say("repr", repr(balanced).split(" (consumer_group")[0].replace("pykafka", "M").replace("managedconsumer", "M"))
parts = {number: type(partition).__name__ for number, partition in sorted(balanced.partitions.items())}
say("its types of partitions", (type(balanced.partitions).__name__, parts))
say("its topic", balanced.topic is topic)
say("calls", calls)
say("consumed", sorted(iterated(balanced, 8)))
held("by the balanced", balanced)
say("commit of the balanced", balanced.commit_offsets())
balanced.stop()
held("after the stop", balanced)
balanced = topic.get_balanced_consumer(GROUP + "-balanced", managed=True, consumer_timeout_ms=TIMEOUT)
say("nothing left", balanced.consume())
balanced.stop()
say("negative", outcome(topic.get_balanced_consumer, "g", managed=True, heartbeat_interval_ms=-1))
