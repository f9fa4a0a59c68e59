"""Writes messages at a steady pace into a topic, in turn into every partition: the load of ``latency`` and ``rate``.

A separate process, so that no reader shares an interpreter with it. At most 500 batches a second: up to that rate a
message comes alone. Above it a batch holds what has become due since the last one, as of a producer which lingers for
two milliseconds. Values: the time at which the batch was sent (ns, monotonic) and the number of the message, filled
up to 100 bytes. Ends after ``--count`` messages, or when its input is closed.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

from managedconsumer.testing.kafka.producer import Producer, encode_plain

_MOST_BATCHES = 500
_SIZE = 100


def write(bootstrap: str, topic: str, partitions: int, pace: float, count: int, ended: threading.Event) -> None:
    """``pace`` messages a second until ``count`` are written or ``ended`` is set."""
    together = max(1, round(pace / _MOST_BATCHES))
    with Producer(bootstrap) as producer:
        producer.partitions(topic)
        due, number, partition = time.monotonic(), 0, 0
        while number < count and not ended.is_set():
            sent = time.monotonic_ns()
            rows = [(None, (b"%d %d " % (sent, number + n)).ljust(_SIZE, b"."), 1) for n in range(together)]
            producer.send(topic, partition, encode_plain(rows))
            number, partition = number + together, (partition + 1) % partitions
            due += together / pace
            if (left := due - time.monotonic()) > 0:
                ended.wait(left)
        producer.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True, help="messages a second")
    parser.add_argument("--count", type=int, required=True, help="messages in all")
    given = parser.parse_args()
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    write(given.bootstrap, given.topic, given.partitions, given.pace, given.count, ended)
    sys.stdout.write("{}\n")


if __name__ == "__main__":
    main()
