"""What is compared: every row of the throughput tables, and the workloads of a quick and of a full run."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from goals import ARROW, BATCH, CONSUME, FETCH_ONLY, GEVENT, LIMIT, LISTS, OLD, POLL, PURE, PYKAFKA
from results import OURS
from workload import Cell

NEW_KAFKA, OLD_KAFKA = "4.3.0", "3.9.2"
#: A row of level 1 is in every workload, of level 2 in the important ones, of level 3 in the first only.
EVERYWHERE, IMPORTANT, FIRST = 1, 2, 3


@dataclass(frozen=True)
class Peer:
    """One row: which program, how much it reads, on which Kafka."""

    name: str
    script: str
    mode: str
    #: Of the smaller topic, which slow clients read; 0: the whole large one. Those that read ahead read all of it, or
    #: they would pay for messages that are not counted.
    share: float = 0.0
    level: int = IMPORTANT
    kafka: str = NEW_KAFKA
    environment: tuple[tuple[str, str], ...] = ()
    #: Codecs that it cannot read, and why.
    without: dict[str, str] = field(default_factory=dict)
    #: What a run takes, start and end included; for the remaining time only.
    seconds: float = 0.8


_PYKAFKA_WITHOUT = {"zstd": "zstd: not supported"}
_KAFKA_PYTHON_WITHOUT = {}
if find_spec("lz4") is None:
    _PYKAFKA_WITHOUT["lz4"] = "lz4: waits for ever without the package lz4, which it does not bring"
    _KAFKA_PYTHON_WITHOUT["lz4"] = "lz4: needs the package lz4, which it does not bring"
if find_spec("zstandard") is None:
    _KAFKA_PYTHON_WITHOUT["zstd"] = "zstd: needs the package zstandard, which it does not bring"

_PURE = (("MANAGEDCONSUMER_IMPL", "python"),)

PEERS = [
    Peer(OURS, "ours", "loop", level=EVERYWHERE),
    Peer(CONSUME, "ours", "consume"),
    Peer(LISTS, "ours", "batch"),
    Peer(ARROW, "ours", "arrow", level=EVERYWHERE, seconds=1.0),
    Peer("managedconsumer consume_arrow, five columns", "ours", "arrow-five", seconds=1.0),
    Peer(GEVENT, "ours", "gevent"),
    Peer("managedconsumer for-loop, two threads", "ours", "two-threads", 0.5, FIRST),
    Peer("managedconsumer for-loop, four threads", "ours", "four-threads", 0.5, FIRST),
    Peer("managedconsumer for-loop, eight threads", "ours", "eight-threads", 0.5, FIRST),
    Peer("managedconsumer for-loop, deserializer", "ours", "deserializer", 0.5, FIRST),
    Peer("managedconsumer for-loop, deserializer, gevent", "ours", "gevent-deserializer", 0.5, FIRST),
    Peer(PURE, "ours", "loop", environment=_PURE, seconds=3.0),
    Peer("managedconsumer for-loop, use_rdkafka", "ours", "rdkafka", 1.0, seconds=1.8),
    Peer(FETCH_ONLY, "ours", "fetch-only", level=FIRST),
    Peer(BATCH, "confluent", "batch", level=EVERYWHERE, seconds=1.2),
    Peer("confluent batch default", "confluent", "batch-default", 1.0, seconds=1.8),
    Peer(POLL, "confluent", "poll", seconds=2.0),
    Peer("confluent poll default", "confluent", "poll-default", 1.0, seconds=2.2),
    Peer("aiokafka getmany", "aio", "many", 1.0, EVERYWHERE, seconds=1.1),
    Peer("aiokafka getmany default", "aio", "many-default", 1.0, FIRST, seconds=1.1),
    Peer("aiokafka async for", "aio", "loop", 0.5, seconds=1.1),
    Peer("kafka-python poll", "kafkapython", "poll", 0.4, EVERYWHERE, without=_KAFKA_PYTHON_WITHOUT, seconds=1.3),
    Peer(
        "kafka-python poll default",
        "kafkapython",
        "poll-default",
        0.4,
        FIRST,
        without=_KAFKA_PYTHON_WITHOUT,
        seconds=1.3,
    ),
    Peer("kafka-python iterator", "kafkapython", "loop", 0.4, without=_KAFKA_PYTHON_WITHOUT, seconds=1.3),
    Peer("kafka-python poll, gevent", "kafkapython", "gevent", 0.4, FIRST, without=_KAFKA_PYTHON_WITHOUT, seconds=1.3),
    Peer(OLD, "ours", "loop", kafka=OLD_KAFKA),
    Peer(PYKAFKA, "pyk", "loop", 0.2, EVERYWHERE, OLD_KAFKA, without=_PYKAFKA_WITHOUT, seconds=2.2),
    Peer("pykafka (Kafka 3.9), gevent", "pyk", "gevent", 0.2, FIRST, OLD_KAFKA, without=_PYKAFKA_WITHOUT, seconds=2.2),
    Peer(LIMIT, "raw", "fetch", level=EVERYWHERE, seconds=0.5),
]

#: Workloads by how many rows they get; the order is that of the report.
FULL = [
    (Cell(100, "none", 8), FIRST),
    (Cell(100, "lz4", 8), IMPORTANT),
    (Cell(1000, "none", 8), IMPORTANT),
    (Cell(1000, "lz4", 8), EVERYWHERE),
    (Cell(100, "zstd", 8), EVERYWHERE),
    (Cell(1000, "zstd", 8), EVERYWHERE),
    (Cell(10000, "none", 8), EVERYWHERE),
    (Cell(10000, "lz4", 8), EVERYWHERE),
    (Cell(10000, "zstd", 8), EVERYWHERE),
    (Cell(100, "none", 1), EVERYWHERE),
    (Cell(100, "none", 64), EVERYWHERE),
    (Cell(100, "none", 1000), EVERYWHERE),
    (Cell(100, "none", 8, by=10), EVERYWHERE),
    (Cell(100, "none", 8, by=1), EVERYWHERE),
    (Cell(100, "none", 8, tls=True), EVERYWHERE),
]
QUICK = [FULL[0], (FULL[1][0], EVERYWHERE), (FULL[2][0], EVERYWHERE)]


def peers_for(level: int, words: list[str] | None) -> list[Peer]:
    """The rows of a workload; ``words``: only those whose name contains one of them."""
    return [peer for peer in PEERS if peer.level <= level and (not words or any(word in peer.name for word in words))]
