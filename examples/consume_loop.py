"""The everyday loop: a member of a group that processes messages and commits them by itself.

    python consume_loop.py --bootstrap localhost:9092 --topic my-topic

Start it as often as you like: the topic's partitions are shared. Ctrl-C or SIGTERM ends it cleanly.

``auto_commit_enable`` commits *finished* messages only: one is finished when the loop comes back for the next. What was
in work when the process died comes again, to this member or another: at least once.
"""

from __future__ import annotations

import argparse
import signal

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import ConsumerStoppedException


def main() -> None:
    parser = argparse.ArgumentParser(description="Consume a topic in a loop.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="consume-loop")
    parser.add_argument("--messages", type=int, default=0, help="end after so many (0: never)")
    arguments = parser.parse_args()

    consumer = ManagedBalancedConsumer(
        arguments.topic, arguments.bootstrap, arguments.group, auto_commit_enable=True, auto_commit_interval_ms=5000
    )
    # stop() may be called from a signal handler; the loop then ends with ConsumerStoppedException.
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    signal.signal(signal.SIGINT, lambda *_: consumer.stop())
    count = 0
    try:
        for message in consumer:
            print(f"{message.partition_id}:{message.offset} {message.key!r} {message.value!r}", flush=True)
            count += 1
            if count == arguments.messages:
                consumer.consume(block=False)  # coming back is what finishes the last one
                break
    except ConsumerStoppedException:
        pass
    finally:
        consumer.stop()  # commits what is finished and leaves the group; harmless a second time
    print(f"{count} messages")


if __name__ == "__main__":
    main()
