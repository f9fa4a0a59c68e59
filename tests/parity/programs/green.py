"""gevent by ``use_greenlets=True``: greenlets go on while others consume."""

import gevent
from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, outcome, places, say, wait

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2", use_greenlets=True)
topic = client.topics[TOPIC]
turns = []


def clock():
    while True:
        turns.append(1)
        gevent.sleep(0.01)


gevent.spawn(clock)
simple = topic.get_simple_consumer(consumer_timeout_ms=TIMEOUT)
got = []
workers = [gevent.spawn(lambda: got.extend(simple)) for _ in range(2)]
gevent.joinall(workers)
say("two greenlets read", places(got))
say("another greenlet went on", len(turns) > 20)
simple.stop()

balanced = topic.get_balanced_consumer(
    GROUP, managed=True, consumer_timeout_ms=TIMEOUT, heartbeat_interval_ms=300, auto_commit_enable=False
)
say("balanced", sorted(balanced.partitions))
reader = gevent.spawn(lambda: places(balanced))
say("read in a greenlet", reader.get())
say("commit", balanced.commit_offsets())

empty = topic.get_simple_consumer(auto_offset_reset=-1, consumer_group=GROUP + "-w")
waiting = gevent.spawn(outcome, empty.consume)
gevent.sleep(0.3)
say("a greenlet that waits for a message", "still waits" if not waiting.ready() else waiting.value)
waiting.kill()
second = topic.get_balanced_consumer(GROUP, managed=True, consumer_timeout_ms=TIMEOUT, heartbeat_interval_ms=300)
wait("they share", lambda: len(balanced.partitions) == len(second.partitions) == 1, sleep=gevent.sleep)
second.stop()
balanced.stop()
say("after the stop", outcome(balanced.consume))
