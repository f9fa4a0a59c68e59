"""What ``import managedconsumer`` costs: it happens in every Spark worker and every short script."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from managedconsumer.testing import MemoryBroker
from managedconsumer.wire import records

HEAVY = ["asyncio", "confluent_kafka", "cramjam", "gevent", "isal", "pyarrow", "pykafka", "pyspark", "ssl", "numpy"]

CODE = """
import json, sys, time
before = time.process_time()
{statement}
cost = time.process_time() - before
print(json.dumps({{"cpu": cost, "modules": sorted(sys.modules)}}))
"""


def measured(statement: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(statement=statement)], capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_importing_is_cheap_and_loads_nothing_heavy() -> None:
    runs = [measured("import managedconsumer") for _ in range(5)]
    modules = runs[0]["modules"]
    assert isinstance(modules, list)
    assert not set(HEAVY) & {name.split(".")[0] for name in modules}
    assert min(run["cpu"] for run in runs) < 0.06  # type: ignore[type-var]


def test_the_consumer_loads_nothing_heavy() -> None:
    modules = measured("from managedconsumer import ManagedBalancedConsumer")["modules"]
    assert isinstance(modules, list)
    heavy = {*HEAVY, "concurrent", "uuid", "dataclasses", "inspect", "random"}
    if records.__impl__ == "cython":  # the twin's messages need it at once
        heavy.add("datetime")
    loaded = {name.split(".")[0] for name in modules}
    assert not heavy & (loaded - _of_logging())


def test_the_class_does_not_load_the_engine() -> None:
    modules = measured("from managedconsumer import ManagedBalancedConsumer, SimpleConsumer")["modules"]
    assert isinstance(modules, list)
    assert not {"socket", "managedconsumer.runtime.engine.engine", "managedconsumer.consumers.session"} & {*modules}


LATER = """
import sys
from managedconsumer import {kind}
consumer = {kind}("orders", sys.argv[1], consumer_group=b"billing", auto_start=False, auto_offset_reset=-2)
made = set(sys.modules)
consumer.start()
assert consumer.consume().value == b"a"
consumer.commit_offsets()
consumer.commit_offsets(wait=False).result()
consumer.held_offsets, consumer.lag(), consumer.progress(), consumer.health(), repr(consumer)
consumer.seek(0, 0)
consumer.stop()
print(*sorted(name for name in set(sys.modules) - made if name.startswith("managedconsumer")))
"""


@pytest.mark.parametrize("kind", ["ManagedBalancedConsumer", "SimpleConsumer"])
def test_a_consumer_that_is_made_has_loaded_all_of_its_modules(kind: str) -> None:
    """An import later, in a worker, in a signal handler or while the interpreter ends, would come at a bad moment."""
    with MemoryBroker({"orders": 1}) as broker:
        broker.produce("orders", [b"a"])
        command = [sys.executable, "-c", LATER.format(kind=kind), broker.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", [])


def _of_logging() -> set[str]:
    """What ``logging`` needs, which everything here imports: since Python 3.14 also dataclasses and inspect."""
    modules = measured("import logging")["modules"]
    assert isinstance(modules, list)
    return {name.split(".")[0] for name in modules}


def test_every_public_name_is_there() -> None:
    code = "import managedconsumer as m; [getattr(m, name) for name in m.__all__]; print(len(dir(m)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_windows_is_told_what_does_not_work_there() -> None:
    code = "import sys, warnings; sys.platform = 'win32'; warnings.simplefilter('error'); import managedconsumer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "RuntimeWarning: managedconsumer is not supported on Windows" in done.stderr
    assert "DevBroker does not start" in done.stderr
