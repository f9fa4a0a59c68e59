"""Progress of Spark's own Kafka source, committed for Kafka's tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, TopicPartition
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark import ProgressListener
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

ENDS = {TopicPartition("views", 0): 7, TopicPartition("views", 1): 3}
broker = memory_broker({"views": 2})


def _progress(offsets: dict[str, int], *, name: str | None = None, kind: str = "KafkaV2[Subscribe[views]]") -> Any:
    source = SimpleNamespace(description=kind, endOffset=json.dumps({"views": offsets}))
    return SimpleNamespace(progress=SimpleNamespace(name=name, id="1-2-3", batchId=4, sources=[source]))


# A client of Spark Connect 4.0 or 4.1 is told offsets as Python writes a dict.
@pytest.mark.parametrize("write", [json.dumps, str], ids=["classic", "Connect"])
def test_each_progress_is_committed_once_it_is_told(broker: MemoryBroker, write: Callable[[Any], str]) -> None:
    listener = ProgressListener(broker.bootstrap, "monitoring")
    try:
        for offsets in ({"0": 5, "1": 3}, {"0": 7}):
            told = _progress(offsets)
            told.progress.sources[0].endOffset = write({"views": offsets})
            listener.onQueryProgress(told)
        listener.onQueryProgress(_progress({"0": 99}, kind="RateStreamV2"))
        until(lambda: listener.committed == ENDS)
        assert broker.committed("monitoring") == ENDS
    finally:
        listener.close()


def test_one_query_of_several(broker: MemoryBroker) -> None:
    listener = ProgressListener({"kafka.bootstrap.servers": broker.bootstrap}, "monitoring", query_name="mine")
    listener.onQueryProgress(_progress({"0": 99}, name="yours"))
    listener.onQueryProgress(_progress({"0": 7, "1": 3}, name="mine"))
    listener.close()
    assert broker.committed("monitoring") == ENDS


def test_a_broker_that_is_away_delays_it_and_nothing_else(broker: MemoryBroker) -> None:
    listener = ProgressListener(broker.bootstrap, "monitoring")
    broker.stop()
    listener.onQueryProgress(_progress({"0": 7, "1": 3}))
    broker.start()
    until(lambda: broker.committed("monitoring") == ENDS)
    listener.close()


def test_a_group_that_has_members_is_refused_in_words(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "managedconsumer.spark.progress")
    with ManagedBalancedConsumer("views", broker.bootstrap, "billing"):
        listener = ProgressListener(broker.bootstrap, "billing")
        listener.onQueryProgress(_progress({"0": 7}))
        until(lambda: "give ProgressListener a group of its own" in caplog.text)
        listener.close()
        assert broker.committed("billing") == {}


def test_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka.bootstrap.servers is missing"):
        ProgressListener({"subscribe": "views"}, "group")
    with pytest.raises(ConfigurationError, match="group_id is empty"):
        ProgressListener("localhost:9092", "")
