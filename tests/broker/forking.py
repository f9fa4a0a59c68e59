"""A member that forks children while it consumes: ``python -m tests.broker.forking '{...}'``, as tests.broker.member.

Each child does one thing that programs do with what they have inherited, and ends; the parent goes on consuming.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from managedconsumer import ManagedBalancedConsumer
from managedconsumer import errors as err
from tests.broker.member import tell

EVERY = 40


def child(consumer: ManagedBalancedConsumer, what: str) -> int:
    """What the child did, as its exit code: 0 is as it should be."""
    signal.alarm(10)  # a child that hangs is killed, and seen by its exit code
    if what == "stop":
        consumer.stop()
        return 0
    if what == "consume":
        try:
            consumer.consume(block=False)
        except err.ForkedProcessError:
            return 0
        return 1
    with contextlib.suppress(err.ForkedProcessError):
        consumer.commit_offsets()
        return 1
    return 0


def fork(consumer: ManagedBalancedConsumer, number: int) -> None:
    what = ("stop", "consume", "commit", "exit")[number % 4]
    pid = os.fork()
    if pid == 0:
        if what == "exit":
            sys.exit(0)  # with all that is done at an interpreter's end
        code = 9
        try:
            code = child(consumer, what)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    tell("forked", what, os.waitstatus_to_exitcode(status))


def main(given: dict[str, Any]) -> None:
    consumer = ManagedBalancedConsumer(
        given["topic"], given["bootstrap"], given["group"], auto_start=False, **given["options"]
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    count = 0
    try:
        consumer.start()
        tell("started", consumer.consumer_id.decode())
        while True:
            message = consumer.consume()
            if message is None:
                continue
            count += 1
            tell("got", message.partition_id, message.offset, (message.value or b"").decode())
            if count % EVERY == 0:
                fork(consumer, count // EVERY)
                tell("member", consumer.consumer_id.decode())
    except err.ConsumerStoppedException:
        tell("stopped", "")
    except SystemExit:  # a child's
        raise
    except BaseException as error:
        tell("error", repr(error))
        raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
