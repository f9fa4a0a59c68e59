"""Answers that go beyond the log's end they tell of: a race inside the broker, or a base offset that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.fetch import leader
from tests.broker.groupkit import until
from tests.logserver import TOPIC, LogServer
from tests.runtime.test_damage import sound


class LateServer(LogServer):
    """Looks at the log's end before the last ``behind`` messages were written; ``times`` times at each offset."""

    behind, times = 1, 1

    def _fetch(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = super()._fetch(body)
        part = answer["responses"][0]["partitions"][0]
        asked = body["topics"][0]["partitions"][0]["fetch_offset"]
        if part["records"] and self.fetches[0, asked] <= self.times:
            part["high_watermark"] -= self.behind
        return answer


@pytest.fixture
def server() -> Iterator[LateServer]:
    with LateServer([[sound(0, 3), sound(3, 2)]]) as server:
        yield server


def test_what_was_written_while_the_broker_answered_is_not_waited_for(
    server: LateServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader, "_ERROR_REST", 60.0)
    with SimpleConsumer(TOPIC, server.address, consumer_timeout_ms=10_000, fetch_wait_max_ms=20) as reader:
        assert [reader.consume().offset for _ in range(5)] == [0, 1, 2, 3, 4]
        server.logs[0].append(sound(5, 1))
        assert reader.consume().offset == 5
        assert reader.health()["trouble"] is None
    assert "beyond" not in caplog.text


def test_what_cannot_be_true_is_not_handed_out(server: LateServer) -> None:
    server.times = 1_000_000
    with SimpleConsumer(TOPIC, server.address, consumer_timeout_ms=200, fetch_wait_max_ms=20) as reader:
        handler = reader._session.engine.handler
        until(handler, lambda: "beyond the log's end" in (reader.health()["trouble"] or ""), 10, "the trouble")
        assert reader.consume() is None
        server.behind = 0
        assert until(handler, reader.consume, 10, "messages").offset == 0
