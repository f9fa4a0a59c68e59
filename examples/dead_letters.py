"""Messages that cannot be read go into a file, and the rest goes on.

    python dead_letters.py --bootstrap localhost:9092 --topic my-topic --letters dead.jsonl

``deserializer`` turns value and key into what the program works with. When it raises (or a batch is
damaged), ``on_error`` decides: "raise" (the position stays before the message), "skip", or a function that returns one
of the two.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from managedconsumer import ManagedBalancedConsumer, Message
from managedconsumer.errors import CorruptRecordError


def from_json(value: bytes | None, key: bytes | None) -> tuple[Any, str | None]:
    """A missing value is a tombstone: not an error."""
    return None if value is None else json.loads(value), None if key is None else key.decode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Set aside what cannot be read.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="dead-letters")
    parser.add_argument("--letters", default="dead.jsonl")
    parser.add_argument("--messages", type=int, default=0, help="end after so many good ones (0: never)")
    arguments = parser.parse_args()

    def set_aside(error: BaseException, message: Message | None) -> str:
        if isinstance(error, CorruptRecordError):  # a whole batch, so there is no message
            letter = {"topic": error.topic, "partition": error.partition, "offset": error.offset}
        elif message is not None:
            letter = {"topic": message.topic, "partition": message.partition_id, "offset": message.offset}
            letter["value"] = (message.value or b"").hex()
        else:
            return "raise"
        with open(arguments.letters, "a") as letters:
            letters.write(json.dumps({**letter, "reason": str(error)}) + "\n")
        return "skip"

    count = 0
    with ManagedBalancedConsumer(
        arguments.topic,
        arguments.bootstrap,
        arguments.group,
        auto_commit_enable=True,
        deserializer=from_json,
        on_error=set_aside,
    ) as consumer:
        for message in consumer:
            print(f"{message.partition_id}:{message.offset} {message.value}", flush=True)
            count += 1
            if count == arguments.messages:
                break
    print(f"{count} messages")


if __name__ == "__main__":
    main()
