"""``import managedconsumer`` is cheap, and offers the names of the contract."""

from __future__ import annotations

import subprocess
import sys

import managedconsumer

CONTRACT = {
    "AsyncConsumerRebalanceListener",
    "BalancedConsumer",
    "Broker",
    "Cluster",
    "CompressionType",
    "Commit",
    "ConsumerRebalanceListener",
    "KafkaClient",
    "ManagedBalancedConsumer",
    "Message",
    "OffsetAndMetadata",
    "OffsetResetStrategy",
    "OffsetType",
    "Partition",
    "Registry",
    "RangeProtocol",
    "RoundRobinProtocol",
    "PartitionProgress",
    "Retry",
    "RunSummary",
    "SimpleConsumer",
    "SslConfig",
    "SubscriptionState",
    "Topic",
    "TopicPartition",
    "TopicPartitionState",
    "__version__",
    "patch_pykafka",
    "read",
    "read_arrow",
    "stop_on_signals",
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_name_of_the_contract_can_be_imported() -> None:
    assert set(managedconsumer.__all__) == CONTRACT
    assert set(dir(managedconsumer)) >= CONTRACT
    for name in CONTRACT:
        value = getattr(managedconsumer, name)
        assert isinstance(value, str) or getattr(value, "__name__", repr(value)) == name


def test_star_import_gives_the_same() -> None:
    assert run("from managedconsumer import *; print(KafkaClient.__name__)").strip() == "KafkaClient"


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(managedconsumer, "Producer")


def test_import_costs_little_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; before = set(sys.modules); start = time.process_time(); import managedconsumer;"
        "cost = time.process_time() - start;"
        "print(cost, *sorted(m for m in set(sys.modules) - before if m.startswith('managedconsumer')))"
    )
    costs = []
    for _ in range(3):
        cost, *modules = run(code).split()
        costs.append(float(cost))
        assert modules == ["managedconsumer", "managedconsumer._version", "managedconsumer.lazy"]
    assert min(costs) < 0.060


def test_the_client_loads_no_optional_package() -> None:
    code = (
        "import sys, managedconsumer; managedconsumer.KafkaClient;"
        "heavy = 'gevent', 'pykafka', 'pyarrow', 'pyspark', 'confluent_kafka', 'cramjam';"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code).strip() == "[]"
