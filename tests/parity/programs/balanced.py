"""Two members share a topic; one leaves, and the other takes over."""

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, ordered, places, say, wait

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]


def join():
    return topic.get_balanced_consumer(
        consumer_group=GROUP, managed=True, consumer_timeout_ms=TIMEOUT, heartbeat_interval_ms=300
    )


first = join()
say("alone", sorted(first.partitions))
say("held at first", ordered(first.held_offsets))
say("read alone", places(first))
say("held after reading", ordered(first.held_offsets))
first.commit_offsets()

second = join()
wait("they share", lambda: len(first.partitions) == len(second.partitions) == 1)
say("together they have", sorted([*first.partitions, *second.partitions]))
say("nothing is read again", places(list(first) + list(second)))
held = {**first.held_offsets, **second.held_offsets}
say("held by both", dict(sorted(held.items())))

second.stop()
say("partitions of the one that left", len(second.partitions))
wait("the other takes over", lambda: len(first.partitions) == 2)
say("nothing is read again by the other", places(first))
first.reset_offsets([(partition, 3) for partition in first.partitions.values()])
say("after a reset", places(first))
say("commit", first.commit_offsets())
first.stop()
say("held after the stop", ordered(first.held_offsets))

third = join()
say("a third goes on at", ordered(third.held_offsets))
say("and reads", places(third))
third.stop()
