"""gevent by ``monkey.patch_all()``: the same program as with threads."""

from gevent import monkey

monkey.patch_all()

import threading  # noqa: E402 (patched first)
import time  # noqa: E402

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, outcome, places, say, wait  # noqa: E402

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]
turns = []


def clock():
    while True:
        turns.append(1)
        time.sleep(0.01)


threading.Thread(target=clock, daemon=True).start()
simple = topic.get_simple_consumer(consumer_timeout_ms=TIMEOUT)
got = []
workers = [threading.Thread(target=lambda: got.extend(simple)) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
say("two threads read", places(got))
say("another went on", len(turns) > 20)
simple.stop()
balanced = topic.get_balanced_consumer(GROUP, managed=True, consumer_timeout_ms=TIMEOUT, heartbeat_interval_ms=300)
say("balanced", sorted(balanced.partitions))
say("read", places(balanced))
say("commit", balanced.commit_offsets())
second = topic.get_balanced_consumer(GROUP, managed=True, consumer_timeout_ms=TIMEOUT, heartbeat_interval_ms=300)
wait("they share", lambda: len(balanced.partitions) == len(second.partitions) == 1)
second.stop()
balanced.stop()
say("after the stop", outcome(balanced.consume))
