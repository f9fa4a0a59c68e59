"""gevent's hub is never kept waiting for more than 50 ms: a greenlet that ticks beside consumers of all kinds tells."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, encode_plain

pytestmark = pytest.mark.gevent
MOST_S = 0.05
ROWS = 9000
BATCHES = 32
LARGE_BATCHES = 3
Topics = Callable[[str], str]


def rows() -> list[tuple[bytes | None, bytes | None, int]]:
    """A batch of a megabyte: a third of it is what a good codec leaves."""
    source = random.Random(3)
    words = [source.randbytes(6).hex().encode() for _ in range(3000)]
    return [(b"k", b" ".join(source.choices(words, k=8)), 1_600_000_000_000) for _ in range(ROWS)]


@pytest.fixture(scope="module")
def filled(kafka44: DevBroker) -> Iterator[Topics]:
    """``filled("lz4")``: 8 partitions with batches of 1 MB. ``filled("large zstd")``: batches that become 58 MB."""
    made: dict[str, str] = {}

    def fill(kind: str) -> str:
        if kind not in made:
            codec, large = kind.split()[-1], kind.startswith("large")
            name = f"hub-{kind.replace(' ', '-')}"
            partitions = 1 if large else 8
            made[kind] = kafka44.create_topic(name, partitions, {"max.message.bytes": "20000000"})
            millions = 16 if codec == "snappy" else 58
            content = [(b"k", b"x" * 1_000_000, 0)] * millions if large else rows()
            with Producer(kafka44.bootstrap, codec=codec) as producer:
                batch = encode_plain(content, codec)
                producer.partitions(name)
                for n in range(LARGE_BATCHES if large else BATCHES):
                    producer.send(name, n % partitions, batch)
                producer.flush()
        return made[kind]

    yield fill
    for name in made.values():
        kafka44.delete_topic(name)


@pytest.fixture
def tick(kafka44: DevBroker, unique: Callable[[str], str]) -> Callable[..., dict[str, Any]]:
    """Consume in a process of its own and give what it found out."""

    def run(topics: list[str], count: int, **given: Any) -> dict[str, Any]:
        body = {"patch": False, "way": "consume", "members": 1, "options": {}, **given}
        body |= {"bootstrap": kafka44.bootstrap, "group": unique("group"), "topics": topics, "count": count}
        done = subprocess.run(
            [sys.executable, "-m", "tests.broker.hub", json.dumps(body)],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["seen"] >= count
        assert found["ticks"] > 0
        return found

    return run


@pytest.mark.parametrize(
    ("codec", "given"),
    [
        ("none", {}),
        ("lz4", {"options": {"queued_max_messages": 1_000_000}}),
        ("lz4", {"way": "batch"}),
        ("zstd", {"way": "arrow"}),
        ("lz4", {"options": {"use_rdkafka": True}}),
        ("lz4", {"options": {"use_rdkafka": True}, "patch": True}),
    ],
    ids=str,
)
def test_batches_of_a_megabyte(
    tick: Callable[..., dict[str, Any]], filled: Topics, codec: str, given: dict[str, Any]
) -> None:
    """Those of the compressing codecs by ``consume()``, with and without patches, are in the next test."""
    found = tick([filled(codec)], ROWS * BATCHES, **given)
    assert found["worst"] < MOST_S


@pytest.mark.parametrize("patch", [False, True])
def test_through_a_rebalance(tick: Callable[..., dict[str, Any]], filled: Topics, patch: bool) -> None:
    found = tick(
        [filled("lz4"), filled("gzip"), filled("zstd")],
        3 * ROWS * BATCHES,
        members=2,
        patch=patch,
        options={"auto_commit_enable": True},
    )
    assert found["worst"] < MOST_S
    assert len(found["shares"]) == 2


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_small_batch_that_becomes_a_large_one(
    tick: Callable[..., dict[str, Any]], filled: Topics, codec: str
) -> None:
    count = LARGE_BATCHES * (16 if codec == "snappy" else 58)
    found = tick([filled(f"large {codec}")], count)
    assert found["worst"] < MOST_S
