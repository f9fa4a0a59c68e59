"""The life of a consumer: started later, stopped, started again, forgotten."""

import gc
import threading

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, offset, outcome, places, say

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]
kinds = {
    "simple": lambda **o: topic.get_simple_consumer(consumer_timeout_ms=TIMEOUT, **o),
    "balanced": lambda **o: topic.get_balanced_consumer(
        GROUP, managed=True, consumer_timeout_ms=TIMEOUT, heartbeat_interval_ms=300, **o
    ),
}
for name, make in kinds.items():
    made = make(auto_start=False)
    say(f"{name} before the start, running", outcome(lambda made=made: made._running))
    if name == "simple":
        say(f"{name} before the start", outcome(lambda made=made: offset(made.consume(block=False))))
    made.start()
    say(f"{name} running", made._running)
    say(f"{name} partitions", sorted(made.partitions))
    say(f"{name} reads", len(places(made)))
    say(f"{name} reads at the end", made.consume())
    say(f"{name} does not block", made.consume(block=False) if name == "simple" else None)
    say(f"{name} stop", made.stop())
    say(f"{name} stop again", outcome(made.stop))
    say(f"{name} running after the stop", made._running)
    say(f"{name} consume after the stop", outcome(made.consume))
    say(f"{name} iterated after the stop", outcome(lambda made=made: list(made)))
    say(f"{name} partitions after the stop", sorted(made.partitions))

made = kinds["simple"]()
waiting = []
blocked = topic.get_simple_consumer(auto_offset_reset=-1, consumer_group=GROUP + "-b")
thread = threading.Thread(target=lambda: waiting.append(outcome(blocked.consume)))
thread.start()
blocked.stop()
thread.join(20)
say("a consume that waits when it is stopped", waiting)
made.stop()

made = kinds["balanced"]()
del made
gc.collect()
made = kinds["balanced"]()
say("after one that was forgotten", sorted(made.partitions))
made.stop()
say("a topic that does not exist", outcome(lambda: client.topics["no such topic"]))
