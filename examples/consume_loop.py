"""The everyday loop: a member of a group that processes messages and commits them by itself.

    python consume_loop.py --bootstrap localhost:9092 --topic my-topic

Start it as often as you like: the topic's partitions are shared. Ctrl-C or SIGTERM ends it after the message in flight,
and nothing is processed twice.

``auto_commit_enable`` commits *finished* messages only: one is finished when the loop comes back for the next, or the
``with`` block ends without an exception. What was in work when the process died comes again, to this member or another:
at least once.
"""

from __future__ import annotations

import argparse

from managedconsumer import ManagedBalancedConsumer, stop_on_signals


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
    count = 0
    with consumer, stop_on_signals(consumer):
        for message in consumer:
            print(f"{message.partition_id}:{message.offset} {message.key!r} {message.value!r}", flush=True)
            count += 1
            if count == arguments.messages:
                break
    # Here what is finished is committed, and the member has left its group.
    print(f"{count} messages")


if __name__ == "__main__":
    main()
