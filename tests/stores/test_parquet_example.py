"""``examples/kafka_to_parquet.py`` and ``kill -9``: every record is in one file, each partition in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from managedconsumer.testing import MemoryBroker
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_to_parquet.py"
TOPIC, GROUP = "orders", "export"
PARTITIONS = 2
# Records that come for each process.
COUNT = 40


def records(where: Path) -> dict[int, list[int]]:
    """The offsets in the files that count, by partition, as they stand there."""
    import pyarrow.parquet as pq

    words = [sys.executable, str(EXAMPLE), "--to", str(where), "--show"]
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for file in subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.split():
        for row in pq.read_table(file).to_pylist():
            assert row["value"] == b"%d" % row["offset"]
            found[row["partition"]].append(row["offset"])
    return found


MANY = pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)])


@pytest.mark.parametrize("kills", [pytest.param(5, marks=pytest.mark.slow), MANY])
def test_a_program_that_is_killed_at_any_moment(kills: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    chance, where = random.Random(25), tmp_path / "results"
    died = ended = written = 0
    with MemoryBroker({TOPIC: PARTITIONS}) as broker:
        words = [sys.executable, "-W", "error", str(EXAMPLE), "--to", str(where), "--rows", "7", "--wait-ms", "20"]
        words += ["--bootstrap", broker.bootstrap, "--topic", TOPIC, "--group", GROUP]
        while ended == 0:
            for number in range(PARTITIONS):
                broker.produce(TOPIC, [b"%d" % n for n in range(written, written + COUNT)], partition=number)
            written += COUNT
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
                until(lambda: broker.members(GROUP) or process.poll() is not None, 60)
                if died < kills:
                    time.sleep(chance.uniform(0.0, 0.25))
                    process.kill()
                    died += 1
                else:
                    until(lambda: sum(map(len, records(where).values())) == PARTITIONS * written, 60)  # noqa: B023
                    process.terminate()
                    ended += 1
                assert process.wait(60) == (0 if ended else -signal.SIGKILL)
            broker.evict(GROUP)  # as after the session of the dead
    assert records(where) == {number: list(range(written)) for number in range(PARTITIONS)}
    print(f"{died} kills, {PARTITIONS * written} records")
