"""Offsets kept in a file of one's own, through pykafka's ``post_rebalance_callback``.

    python callback.py --bootstrap localhost:9092 --topic my-topic --offsets offsets.json

The callback runs after every rebalance, before the first message of a new partition is handed out. ``old`` and ``new``,
and what it returns, are offsets *last consumed*: ``{0: 41}`` means that partition 0 goes on with 42. -2 means "from the
beginning" and -1 "from the end". An exception in it surfaces from the next ``consume()``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from managedconsumer import ManagedBalancedConsumer


class Offsets:
    """The offset last consumed of each partition, in a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def load(self) -> dict[int, int]:
        if not self._path.exists():
            return {}
        return {int(partition): offset for partition, offset in json.loads(self._path.read_text()).items()}

    def save(self, held: dict[int, int]) -> None:
        known = {**self.load(), **{partition: offset for partition, offset in held.items() if offset >= 0}}
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(known))
        temporary.replace(self._path)  # at once or not at all


def main() -> None:
    parser = argparse.ArgumentParser(description="Keep offsets in a file.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="callback")
    parser.add_argument("--offsets", default="offsets.json")
    parser.add_argument("--messages", type=int, default=0, help="end after so many (0: never)")
    arguments = parser.parse_args()
    offsets = Offsets(arguments.offsets)

    def after_rebalance(_consumer: Any, old: dict[int, int], new: dict[int, int]) -> dict[int, int]:
        print(f"had {sorted(old)}, now have {sorted(new)}", flush=True)
        known = offsets.load()
        return {partition: known[partition] for partition in new if partition in known}

    count = 0
    with ManagedBalancedConsumer(
        arguments.topic, arguments.bootstrap, arguments.group, post_rebalance_callback=after_rebalance
    ) as consumer:
        for message in consumer:
            print(f"{message.partition_id}:{message.offset} {message.value!r}", flush=True)
            offsets.save({message.partition_id: message.offset})
            count += 1
            if count == arguments.messages:
                break
    print(f"{count} messages")


if __name__ == "__main__":
    main()
