"""Batches, each committed once its results are safe.

    python manual_commit.py --bootstrap localhost:9092 --topic my-topic --output results.txt

Nothing is ever committed but by ``commit_offsets()``: a batch whose results could not be written comes again.
"""

from __future__ import annotations

import argparse
import os

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import CommitFailedError


def main() -> None:
    parser = argparse.ArgumentParser(description="Commit batches by hand.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="manual-commit")
    parser.add_argument("--output", default="results.txt")
    parser.add_argument("--messages", type=int, default=0, help="end after so many (0: never)")
    arguments = parser.parse_args()

    count = 0
    with (
        ManagedBalancedConsumer(arguments.topic, arguments.bootstrap, arguments.group) as consumer,
        open(arguments.output, "ab") as output,
    ):
        while not arguments.messages or count < arguments.messages:
            # As soon as there is one message, and never more than 500.
            batch = consumer.consume_batch(max_messages=500, timeout_ms=1000)
            if not batch:
                continue
            output.writelines((message.value or b"") + b"\n" for message in batch)
            output.flush()
            os.fsync(output.fileno())  # the results are safe from here on
            try:
                # All that was handed out to this thread. Returning means that it is stored.
                consumer.commit_offsets()
            except CommitFailedError as error:
                # The partitions have gone to another member in the meantime, which will read the batch again.
                print(f"not committed: {error}")
            count += len(batch)
            print(f"{count} messages, committed up to {consumer.held_offsets}", flush=True)


if __name__ == "__main__":
    main()
