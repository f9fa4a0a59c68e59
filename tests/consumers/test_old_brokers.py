"""What an old broker cannot do is said, with the release that can."""

from __future__ import annotations

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import UnsupportedBrokerError
from managedconsumer.testing import MemoryBroker
from managedconsumer.testing.memory import api_versions


@pytest.mark.parametrize("protocol", ["auto", "classic"])
def test_static_members_need_kafka_2_3(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    for key, newest in {11: 4, 12: 2, 13: 2, 14: 2}.items():  # as Kafka 2.1 lists them
        monkeypatch.setitem(api_versions.VERSIONS, key, (0, newest))
    with (
        MemoryBroker({"orders": 1}, group_protocols=("classic",)) as broker,
        pytest.raises(UnsupportedBrokerError, match=r"group_instance_id='till-1': static members need Kafka 2\.3"),
    ):
        ManagedBalancedConsumer("orders", broker.bootstrap, "g", group_instance_id="till-1", group_protocol=protocol)
