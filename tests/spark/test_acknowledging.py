"""A worker acknowledges what the JVM sends at once, after each of its tasks. No JVM."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")

_WORKER = """
import gc, os, socket, sys
from managedconsumer.spark.acknowledging import acknowledge_at_once
ours = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
local, other = socket.socketpair()
closed = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
acknowledge_at_once()
acknowledge_at_once()
later = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
closed.close()
for each in (ours, later):
    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
gc.collect(0)
print([each.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for each in (ours, later)])
gc.collect()  # as Spark's daemon does after a task
print([each.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for each in (ours, later)], len(gc.callbacks))
"""


def test_after_a_task_the_workers_own_connection_acknowledges_at_once_and_no_later_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = subprocess.run(
            [sys.executable, "-c", _WORKER, str(server.getsockname()[1])],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.stdout, done.stderr) == ("[0, 0]\n[1, 0] 1\n", "")
