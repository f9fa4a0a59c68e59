"""The options as types are those of the constructors. What mypy makes of them is seen in ``program.py``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from managedconsumer import BalancedConsumer, KafkaClient, ManagedBalancedConsumer, SimpleConsumer, typed_options
from managedconsumer.compat.parts import Topic
from managedconsumer.runtime.net.security import Security
from managedconsumer.testing import MemoryBroker


def parameters(call: Any) -> dict[str, str]:
    """Names and types, without those that are given by position."""
    found = inspect.signature(call).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {each.name: str(each.annotation) for each in found if each.kind in kinds}
    return {name: kind for name, kind in known.items() if name not in ("self", "topic", "cluster", "consumer_group")}


def keys(options: Any) -> dict[str, str]:
    return {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}


def test_of_a_managed_consumer() -> None:
    assert keys(typed_options.ManagedConsumerOptions) == parameters(ManagedBalancedConsumer.__init__)


def test_of_a_balanced_consumer() -> None:
    explicit = parameters(BalancedConsumer.__init__)
    more = keys(typed_options.NewMemberOptions)
    assert not explicit.keys() & more.keys()
    assert {**explicit, **more} == keys(typed_options.BalancedConsumerOptions)


def test_of_a_simple_consumer() -> None:
    explicit = parameters(SimpleConsumer.__init__)
    more = keys(typed_options.NewSimpleOptions)
    assert not explicit.keys() & more.keys()
    assert {**explicit, **more} == {**keys(typed_options.SimpleConsumerOptions), "use_rdkafka": "bool"}


def test_of_a_client() -> None:
    assert set(keys(typed_options.SecurityOptions)) == set(Security._fields)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("auto_commit_enabled", "auto_commit_enable"),
        ("group_id", "consumer_group"),
        ("fetch_min_byte", "fetch_min_bytes"),
    ],
)
def test_a_wrong_name_is_told_with_the_right_one(name: str, meant: str) -> None:
    """In every place that takes options; nothing is connected to for it."""
    with MemoryBroker({"orders": 1}) as broker:
        client = KafkaClient(broker.bootstrap)
        topic = client.topics["orders"]
        assert isinstance(topic, Topic)
        for make in (
            lambda **given: topic.get_simple_consumer("g", **given),
            lambda **given: topic.get_balanced_consumer("g", managed=True, **given),
            lambda **given: SimpleConsumer("orders", broker.bootstrap, "g", **given),
            lambda **given: BalancedConsumer("orders", broker.bootstrap, "g", **given),
            lambda **given: ManagedBalancedConsumer("orders", broker.bootstrap, "g", **given),
        ):
            with pytest.raises(TypeError, match=f"{name}.*did you mean {meant}[?]"):
                make(**{name: 1})
