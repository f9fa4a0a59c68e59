"""The last N messages of a topic, as the usage guide has it."""

import math
from itertools import islice

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, places, say

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]
LATEST = -1
for wanted in (4, 100):
    consumer = topic.get_simple_consumer(
        auto_offset_reset=LATEST, reset_offset_on_start=True, consumer_group=GROUP, consumer_timeout_ms=TIMEOUT
    )
    rewind = math.ceil(wanted / len(consumer._partitions))
    offsets = [(p, op.last_offset_consumed - rewind) for p, op in consumer._partitions.items()]
    say(f"the last {wanted} begin after", sorted((p.id, o) for p, o in offsets))
    consumer.reset_offsets([(p, o if o > -1 else -2) for p, o in offsets])
    say(f"the last {wanted}", places(islice(consumer, wanted)))
    say(f"held after the last {wanted}", dict(sorted(consumer.held_offsets.items())))
    consumer.stop()

consumer = topic.get_simple_consumer(consumer_timeout_ms=TIMEOUT)
say("partitions that are owned", sorted(p.id for p in consumer._partitions))
say("they know their own", all(p == op.partition for p, op in consumer._partitions.items()))
say("next offsets", sorted(op.next_offset for op in consumer._partitions.values()))
list(consumer)
say("next offsets at the end", sorted(op.next_offset for op in consumer._partitions.values()))
say("last consumed at the end", sorted(op.last_offset_consumed for op in consumer._partitions.values()))
consumer.stop()
