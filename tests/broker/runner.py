"""A member that runs a handler, in a process of its own: ``python -m tests.broker.runner '{...}'``.

The argument is JSON: ``topic``, ``bootstrap``, ``group``, ``hold`` (seconds that the handler takes),
``stuck`` (from this offset on a handler does not end; below it, it takes 1 to 7 times ``hold``), ``run`` (arguments of
``run()``), ``options`` of the consumer. Every line that it prints is one event, as a JSON list.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from managedconsumer import ManagedBalancedConsumer, Message
from tests.broker.member import tell


def main(given: dict[str, Any]) -> None:
    def seconds(message: Message) -> float:
        stuck = given.get("stuck", -1)
        if stuck < 0:
            return float(given["hold"])
        return float(given["hold"] * (1 + message.offset % 7)) if message.offset < stuck else 3600.0

    def handle(message: Message) -> None:
        tell("began", message.partition_id, message.offset)
        time.sleep(seconds(message))
        tell("done", message.partition_id, message.offset)

    async def handle_async(message: Message) -> None:
        tell("began", message.partition_id, message.offset)
        await asyncio.sleep(seconds(message))
        tell("done", message.partition_id, message.offset)

    handler = handle_async if given["run"].get("on") == "asyncio" else handle
    consumer = ManagedBalancedConsumer(given["topic"], given["bootstrap"], given["group"], **given["options"])
    tell("summary", *consumer.run(handler, **given["run"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
