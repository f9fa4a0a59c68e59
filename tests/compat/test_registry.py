"""How a topic makes its consumers, and how an unchanged pykafka program gets ours."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import managedbalancedconsumer, patch_pykafka, simpleconsumer
from tests.compat.views import FakeView, snapshot


class Recorder:
    """Stands for both consumers' classes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def of(self, kind: str) -> Callable[..., str]:
        def make(*args: Any, **kwargs: Any) -> str:
            self.calls.append((kind, args, kwargs))
            return kind

        return make


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(simpleconsumer, "SimpleConsumer", recorder.of("simple"))
    monkeypatch.setattr(managedbalancedconsumer, "ManagedBalancedConsumer", recorder.of("balanced"))
    return recorder


@pytest.fixture
def pykafka_topic() -> Iterator[Any]:
    """A pykafka Topic without a broker, in a pykafka that is patched."""
    topics = pytest.importorskip("pykafka.topic")
    undo = patch_pykafka()
    topic = topics.Topic.__new__(topics.Topic)
    topic._cluster, topic._name, topic._partitions = "their cluster", b"clicks", {}
    yield topic
    undo()


def test_a_simple_consumer(recorder: Recorder) -> None:
    view = FakeView(snapshot(1, clicks=1))
    topic = view.topic("clicks")
    assert topic.get_simple_consumer("group", consumer_timeout_ms=5) == "simple"
    assert topic.get_simple_consumer() == "simple"
    assert recorder.calls == [
        ("simple", (topic, view), {"consumer_group": "group", "consumer_timeout_ms": 5}),
        ("simple", (topic, view), {"consumer_group": None}),
    ]


def test_use_rdkafka_is_passed_on_only_when_asked_for(recorder: Recorder) -> None:
    FakeView(snapshot(1, clicks=1)).topic("clicks").get_simple_consumer(use_rdkafka=True)
    assert recorder.calls[0][2]["use_rdkafka"] is True


def test_a_managed_consumer(recorder: Recorder) -> None:
    view = FakeView(snapshot(1, clicks=1))
    topic = view.topic("clicks")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert topic.get_balanced_consumer(b"group", managed=True, auto_start=False) == "balanced"
    assert recorder.calls == [("balanced", (topic, view, b"group"), {"auto_start": False})]


def test_zookeepers_consumer_is_the_managed_one_with_a_warning(recorder: Recorder) -> None:
    topic = FakeView(snapshot(1, clicks=1)).topic("clicks")
    with pytest.warns(DeprecationWarning, match="managed=True") as caught:
        topic.get_balanced_consumer("group", zookeeper_connect="zk:2181", zookeeper_connection_timeout_ms=9)
    assert caught[0].filename == __file__  # the user's line is the one to change
    assert recorder.calls[0][2] == {}


def test_patched_topics_make_our_consumers(recorder: Recorder, pykafka_topic: Any) -> None:
    assert pykafka_topic.get_simple_consumer(consumer_group=b"g", auto_start=False) == "simple"
    assert pykafka_topic.get_balanced_consumer("g", managed=True, consumer_timeout_ms=1) == "balanced"
    with pytest.warns(DeprecationWarning, match="managed=True") as caught:
        pykafka_topic.get_balanced_consumer(consumer_group="g", zookeeper_connect="zk:2181")
    assert caught[0].filename == __file__
    assert recorder.calls == [
        ("simple", (pykafka_topic, "their cluster"), {"consumer_group": b"g", "auto_start": False}),
        ("balanced", (pykafka_topic, "their cluster", "g"), {"consumer_timeout_ms": 1}),
        ("balanced", (pykafka_topic, "their cluster", "g"), {}),
    ]


def test_patching_twice_and_undoing() -> None:
    topics = pytest.importorskip("pykafka.topic")
    before = (topics.Topic.get_simple_consumer, topics.Topic.get_balanced_consumer)
    first = patch_pykafka()
    patched = topics.Topic.get_simple_consumer
    second = patch_pykafka()
    assert topics.Topic.get_simple_consumer is patched
    assert patched is not before[0]
    first()
    assert (topics.Topic.get_simple_consumer, topics.Topic.get_balanced_consumer) == before
    second()
    assert (topics.Topic.get_simple_consumer, topics.Topic.get_balanced_consumer) == before


@pytest.mark.parametrize(
    ("absent", "text"), [("pykafka", "managedconsumer[pykafka]"), ("pkg_resources", "setuptools<81")]
)
def test_a_pykafka_that_cannot_be_imported(absent: str, text: str) -> None:
    code = f"""
import sys, managedconsumer
sys.modules[{absent!r}] = None
try:
    managedconsumer.patch_pykafka()
except ImportError as error:
    print(type(error).__name__, error)
"""
    # In a process of its own: two pykafkas in one would confuse the tests that follow.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("MissingPackageError"), done.stderr
    assert text in done.stdout
