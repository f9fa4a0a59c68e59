"""An explicit commit is the user's word: no automatic commit takes it back."""

from __future__ import annotations

import time
from typing import Any, Callable

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from tests.broker.groupkit import committed, until, write

pytestmark = pytest.mark.broker


def test_an_automatic_commit_does_not_take_an_explicit_one_back(
    kafka44: Any, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka44, partitions=1), unique("commits")
    write(kafka44, name, 1, 20)
    consumer = ManagedBalancedConsumer(
        name, kafka44.bootstrap, group, auto_commit_enable=True, auto_commit_interval_ms=200, consumer_timeout_ms=10000
    )
    try:
        for _ in range(10):
            assert consumer.consume() is not None
        consumer.commit_offsets()  # the tenth message, which is in flight, included
        assert committed(kafka44, group, name, 1) == {0: 10}
        assert consumer.consume() is not None
        later = time.monotonic() + 1.0
        until(ThreadingHandler(), lambda: time.monotonic() > later, 10, "five intervals of the automatic commit")
        assert committed(kafka44, group, name, 1)[0] >= 10
        consumer.commit_offsets()
    finally:
        consumer.stop()
    assert committed(kafka44, group, name, 1) == {0: 11}
