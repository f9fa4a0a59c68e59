"""A member in a process of its own, to be killed, stopped and continued: ``python -m tests.broker.member '{...}'``.

The argument is JSON: ``topic``, ``bootstrap``, ``group``, ``greenlets``, ``commit_each`` (an explicit commit after each
message), ``hold`` (seconds of work for each message), ``options`` of the consumer. Every line that it prints is one
event, as a JSON list.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Collection

from managedconsumer import ConsumerRebalanceListener, ManagedBalancedConsumer, TopicPartition
from managedconsumer import errors as err


def tell(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        tell("revoked", [tp.partition for tp in revoked])

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        tell("assigned", [tp.partition for tp in assigned])

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        tell("lost", [tp.partition for tp in lost])


def main(given: dict[str, Any]) -> None:
    consumer = ManagedBalancedConsumer(
        given["topic"],
        given["bootstrap"],
        given["group"],
        auto_start=False,
        use_greenlets=given["greenlets"],
        listener=Listener(),
        **given["options"],
    )

    def end(*_: Any) -> None:
        tell("signal")
        consumer.stop()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        consumer.start()
        tell("started", os.getpid(), consumer.health()["group_protocol"])
        while True:
            message = consumer.consume()
            if message is None:
                continue
            tell("got", message.partition_id, message.offset, (message.value or b"").decode())
            if given.get("hold"):
                consumer._session.engine.handler.sleep(given["hold"])
                tell("done", message.partition_id, message.offset)
            if given.get("commit_each"):
                commit(consumer)
    except err.ConsumerStoppedException:
        tell("stopped", repr(consumer.held_offsets))
    except BaseException as error:
        tell("error", repr(error))
        raise


def commit(consumer: ManagedBalancedConsumer) -> None:
    try:
        consumer.commit_offsets()
        tell("committed")
    except err.CommitFailedError as error:
        tell("refused", str(error))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
