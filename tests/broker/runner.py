"""A member that runs a handler, in a process of its own: ``python -m tests.broker.runner '{...}'``.

The argument is JSON: ``topic``, ``bootstrap``, ``group``, ``hold`` (seconds that the handler takes), ``run`` (arguments
of ``run()``), ``options`` of the consumer. Every line that it prints is one event, as a JSON list.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from managedconsumer import ManagedBalancedConsumer, Message


def tell(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def main(given: dict[str, Any]) -> None:
    def handle(message: Message) -> None:
        tell("began", message.partition_id, message.offset)
        time.sleep(given["hold"])
        tell("done", message.partition_id, message.offset)

    consumer = ManagedBalancedConsumer(given["topic"], given["bootstrap"], given["group"], **given["options"])
    tell("summary", *consumer.run(handle, **given["run"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
