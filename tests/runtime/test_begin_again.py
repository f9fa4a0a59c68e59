"""A broker that sends its clients back to the bootstrap addresses (KIP-1102)."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.wire.protocol import schemas
from tests.runtime.peers import Peer, scripted

REBOOTSTRAP_REQUIRED = 129


def _answer(brokers: dict[int, int], code: int = 0) -> dict[str, Any]:
    named = [{"node_id": node, "host": "127.0.0.1", "port": port, "rack": None} for node, port in brokers.items()]
    return {"brokers": named, "topics": [], "cluster_id": "one", "controller_id": -1, "error_code": code}


def _serves(*answers: dict[str, Any]) -> Any:
    """A broker that gives these answers over all of its connections, and the last one for ever."""
    left = list(answers)

    def script(peer: Peer) -> None:
        peer.greet()
        while True:
            peer.answer(schemas.METADATA, left.pop(0) if len(left) > 1 else left[0])

    return scripted(script)


def test_the_brokers_are_forgotten_and_asked_for_anew() -> None:
    with _serves(_answer({}, REBOOTSTRAP_REQUIRED)) as old, _serves(_answer({1: old.port}), _answer({2: 9})) as first:
        cluster = Cluster([("127.0.0.1", first.port)], ThreadingHandler())
        try:
            assert list(cluster.refresh(()).brokers) == [1]
            cluster.close_idle()
            assert list(cluster.refresh(()).brokers) == [2]  # broker 1 was asked, and sent us away
        finally:
            cluster.close()


def test_who_is_sent_in_a_circle_tries_again_later() -> None:
    with _serves(_answer({}, REBOOTSTRAP_REQUIRED)) as broker:
        cluster = Cluster([("127.0.0.1", broker.port)], ThreadingHandler())
        try:
            with pytest.raises(err.NoBrokersAvailableError, match="send us to the bootstrap addresses again"):
                cluster.refresh(())
        finally:
            cluster.close()
