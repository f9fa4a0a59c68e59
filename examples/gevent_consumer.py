"""A consumer among greenlets, without any monkey-patching.

    python gevent_consumer.py --bootstrap localhost:9092 --topic my-topic

``use_greenlets=True`` makes every worker of the consumer a greenlet and every wait of it a wait of the hub: the other
greenlets go on. Programs that are monkey-patched need not say anything.
"""

from __future__ import annotations

import argparse

import gevent
import gevent.event

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import ConsumerStoppedException


def main() -> None:
    parser = argparse.ArgumentParser(description="Consume in a greenlet.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="greenlets")
    parser.add_argument("--messages", type=int, default=0, help="end after so many (0: never)")
    arguments = parser.parse_args()

    consumer = ManagedBalancedConsumer(arguments.topic, arguments.bootstrap, arguments.group, use_greenlets=True)
    done = gevent.event.Event()
    seen = []

    def work(number: int) -> None:
        """Several greenlets may share a consumer; each message goes to one of them."""
        try:
            for message in consumer:
                if done.is_set():
                    return  # enough: nobody works on this message, and the next run gets it again
                seen.append(message.offset)
                print(f"worker {number}: {message.partition_id}:{message.offset} {message.value!r}", flush=True)
                if len(seen) == arguments.messages:
                    done.set()
                gevent.sleep(0.001)  # what the work is: here the others get their turn
        except ConsumerStoppedException:
            pass

    def watch() -> None:
        """Something else that has to run all the time."""
        while not done.wait(1.0):
            print(f"lag {consumer.lag()}", flush=True)

    workers = [gevent.spawn(work, number) for number in range(3)]
    watcher = gevent.spawn(watch)
    done.wait()
    consumer.commit_offsets()
    consumer.stop()  # wakes the workers
    gevent.joinall([*workers, watcher])
    print(f"{len(seen)} messages")


if __name__ == "__main__":
    main()
