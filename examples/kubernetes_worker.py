"""A worker for Kubernetes: run() with probes, a clean end, and a membership that outlives its pod.

    POD_NAME=orders-0 python kubernetes_worker.py --bootstrap localhost:9092 --topic orders --port 8080

``observability/kubernetes_static.yaml`` starts it. A StatefulSet gives each pod a name that it keeps, and this name is
the member's ``group_instance_id``: a pod that is replaced within ``session_timeout_ms`` gets its partitions back, and
nobody else stops for that. Without ``POD_NAME`` it is an ordinary member, which leaves its group at the end.

SIGTERM ends it: handlers have ``grace_ms`` to finish, what they have finished is committed, and closing takes 5 s at
most. ``terminationGracePeriodSeconds`` has to be longer than both together.
"""

from __future__ import annotations

import argparse
import os

from managedconsumer import ManagedBalancedConsumer, Message
from managedconsumer.observe import serve

GRACE_MS = 20_000
SESSION_TIMEOUT_MS = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Process a topic in a pod.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="orders")
    parser.add_argument("--port", type=int, default=8080, help="for the probes; 0: any free one")
    arguments = parser.parse_args()

    def handle(message: Message) -> None:
        print(f"{message.partition_id}:{message.offset} {message.value!r}", flush=True)

    consumer = ManagedBalancedConsumer(
        arguments.topic,
        arguments.bootstrap,
        arguments.group,
        group_instance_id=os.environ.get("POD_NAME"),
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )
    with serve(consumer, host="0.0.0.0", port=arguments.port) as endpoint:
        print(f"probes at port {endpoint.address[1]}", flush=True)
        done = consumer.run(handle, grace_ms=GRACE_MS)
    print(f"{done.done} messages, ended by {done.reason}")


if __name__ == "__main__":
    main()
