"""Programs of the tests about signals and forks: each runs in a process of its own, which ends loudly if it hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent

HEAD = """
import faulthandler, logging, os, signal, sys, threading, time
faulthandler.dump_traceback_later(40, exit=True)
import managedconsumer
from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record, encode_batch
from managedconsumer.wire.records import __impl__
from tests.waiting import until

P0 = TopicPartition("orders", 0)

def full_broker(batches=200):
    broker = MemoryBroker({"orders": 1}).start()
    log = broker._topics.log("orders", 0)
    batch = encode_batch([Record(b"x" * 20)] * 500)
    for _ in range(batches):
        log.append(batch)
    return broker

"""


def run(program: str, *arguments: str, impl: str = "") -> str:
    """What ``program`` prints; AssertionError if it fails or hangs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"MANAGEDCONSUMER_IMPL": impl} if impl else {})}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
