"""A program as pykafka's users write it. It runs unchanged with pykafka and with managedconsumer, but for the import.

Usage: program.py MODULE EXCEPTIONS BOOTSTRAP TOPIC GROUP. The topic has two partitions; the first holds offsets 0 to
19, the second 0 to 4. Prints types and values, one fact a line. Left out: ``Message.protocol_version``, which is the
format that the broker sent, and pykafka asks for an older one.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from importlib import import_module

module, exceptions = import_module(sys.argv[1]), import_module(sys.argv[2])
KafkaClient = module.KafkaClient
bootstrap, topic_name, group = sys.argv[3:6]


def say(what, value):
    text = re.sub(r"0x[0-9a-f]+", "0x", repr(value))
    print(f"{what}: {type(value).__name__} {text.replace(sys.argv[1], 'MODULE')}")


def ordered(offsets):
    """A dict of offsets in the order of the partitions; pykafka's is that of a set, another in each run."""
    return offsets if offsets is None else dict(sorted(offsets.items()))


def raised(what, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
        print(f"{what}: nothing")
    except Exception as error:  # noqa: BLE001 - what it is is printed
        # Own subclasses count as what they are a kind of.
        names = [base.__name__ for base in type(error).__mro__ if base.__module__ in (sys.argv[2], "builtins")]
        known = [n for n in names if n in {"TypeError", "ValueError", "UnicodeException", "ConsumerStoppedException"}]
        print(f"{what}: raises {known[0] if known else names}")


def show(what, message):
    print(
        what,
        type(message).__name__,
        message.partition_id,
        message.offset,
        type(message.value).__name__,
        message.value,
        message.partition_key,
        message.timestamp,
        type(message.timestamp_dt).__name__,
        message.timestamp_dt,
        message.compression_type,
        message.produce_attempt,
        message.delivery_report_q,
        len(message),
        bool(message),
        type(message.partition).__name__,
        message.partition.id,
    )


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


def plain(offsets):
    return sorted((partition, response.offset, response.err) for partition, response in offsets)


client = KafkaClient(hosts=bootstrap, broker_version="0.10.2")
say("brokers", sorted(type(broker.id).__name__ for broker in client.brokers.values()))
topic = client.topics[topic_name.encode()]
say("topic", type(topic).__name__)
say("name", topic.name == topic_name.encode())
say("partitions", {number: type(partition).__name__ for number, partition in sorted(topic.partitions.items())})
say("leader", type(topic.partitions[0].leader).__name__)
say("latest", {p: (type(r).__name__, r.offset, r.err) for p, r in sorted(topic.latest_available_offsets().items())})
say("earliest", {p: (r.offset, r.err) for p, r in sorted(topic.earliest_available_offsets().items())})
say("latest of one", topic.partitions[1].latest_available_offset())

# -- a simple consumer, without a group --------------------------------------------------------------
first = topic.partitions[0]
consumer = topic.get_simple_consumer(partitions=[first], consumer_timeout_ms=1000)
say("its partitions", sorted(consumer.partitions))
say("held", ordered(consumer.held_offsets))
for _ in range(3):
    show("message", next_of(consumer))
say("held", ordered(consumer.held_offsets))
say("iterated", iterated(consumer, 17))
say("again", [message.offset for message in consumer])
say("at the end", consumer.consume())
say("not blocking", consumer.consume(block=False))
consumer.stop()
raised("after stop", consumer.consume)
raised("stop twice", consumer.stop)

# -- offsets, with a group ----------------------------------------------------------------------------
consumer = topic.get_simple_consumer(consumer_group=group, partitions=[first], consumer_timeout_ms=1000)
for target in (10, 0, -2, dt.datetime(1999, 1, 1)):
    consumer.reset_offsets([(first, target)])
    say(f"next after reset to {target}", next_of(consumer).offset)
    say("held", ordered(consumer.held_offsets))
consumer.reset_offsets([(first, -1)])
say("next after reset to -1", consumer.consume())
consumer.commit_offsets([(first, 7)])
say("fetched", plain(consumer.fetch_offsets()))
say("next", next_of(consumer).offset)
say("commit", consumer.commit_offsets())
say("fetched", plain(consumer.fetch_offsets()))
say("response", type(consumer.fetch_offsets()[0][1]).__name__)
consumer.stop()
consumer = topic.get_simple_consumer(consumer_group=group, partitions=[first], consumer_timeout_ms=1000)
say("next in a new consumer", next_of(consumer).offset)
consumer.stop()
consumer = topic.get_simple_consumer(
    consumer_group=group,
    partitions=[first],
    consumer_timeout_ms=1000,
    reset_offset_on_start=True,
    auto_offset_reset=-1,
    deserializer=lambda value, key: (value.decode(), key),
)
consumer.reset_offsets([(first, 15)])
show("deserialized", next_of(consumer))
consumer.stop()

# -- a balanced consumer ---------------------------------------------------------------------------------
calls = []


def callback(consumer, old, new):
    calls.append((type(consumer).__name__, ordered(old), ordered(new)))
    return {0: 17}


balanced = topic.get_balanced_consumer(
    consumer_group=(group + "-balanced").encode(),
    managed=True,
    consumer_timeout_ms=2000,
    auto_commit_enable=False,
    post_rebalance_callback=callback,
)
say("class", type(balanced).__name__)
say("repr", balanced)
say("its partitions", {number: type(partition).__name__ for number, partition in sorted(balanced.partitions.items())})
say("its topic", balanced.topic is topic)
say("calls", calls)
say("consumed", sorted(iterated(balanced, 8)))
say("held", ordered(balanced.held_offsets))
say("commit", balanced.commit_offsets())
balanced.stop()
say("held after stop", ordered(balanced.held_offsets))
raised("after stop", balanced.consume)
balanced = topic.get_balanced_consumer(group + "-balanced", managed=True, consumer_timeout_ms=1000)
say("nothing left", balanced.consume())
balanced.stop()

# -- mistakes -----------------------------------------------------------------------------------------------
simple, get = topic.get_simple_consumer, topic.get_balanced_consumer
raised("unknown argument", get, "g", managed=True, queue_max=5)
raised("text for a number", simple, queued_max_messages="5")
raised("zero", simple, queued_max_messages=0)
raised("negative", get, "g", managed=True, heartbeat_interval_ms=-1)
raised("group", get, "gr\xfcn", managed=True)
