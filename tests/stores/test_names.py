"""Which row is whose: names of groups and topics have dots, slashes and percent signs, and no two share a row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import TopicPartition
from managedconsumer.errors import ConfigurationError
from managedconsumer.stores import delta, iceberg
from tests.stores.conftest import Storage, slow

GROUPS = ["shop", "shop.eu", "shop.eu.orders", "shop%2Eeu", "shop/eu", "shop.", "claims"]
TOPICS = ["orders", "eu.orders", "eu", "orders.0", "a.b.c", "2Eeu"]


@pytest.mark.parametrize("name", [lambda g, tp: iceberg._name(g, tp), lambda g, tp: delta._names(g, tp)[0]])
def test_no_two_rows_have_one_name(name: Callable[[str, TopicPartition], str]) -> None:
    places = [(g, TopicPartition(t, n)) for g, t, n in itertools.product(GROUPS, TOPICS, range(2))]
    assert len({name(*place) for place in places}) == len(places)


def test_names_without_dots_are_those_of_version_0_2_0() -> None:
    """Both versions find each other's rows."""
    assert iceberg._name("shop", TopicPartition("orders", 3)) == "managedconsumer.shop.orders.3"


@pytest.mark.parametrize("group", ["shop", "50%", "a.b c"])
def test_a_property_of_version_0_2_0_is_found_where_it_can_be_only_one_group_s(group: str) -> None:
    """No topic is named "b c.orders"."""
    properties = {f"managedconsumer.{group}.orders.0": "[5, 1, 1]"}
    assert iceberg._find(properties, group, TopicPartition("orders", 0)) == "[5, 1, 1]"


def test_a_property_that_may_be_another_group_s_is_said_with_its_remedy() -> None:
    old, new = "managedconsumer.shop.eu.orders.0", "managedconsumer.shop%2Eeu.orders.0"
    properties = {old: "[500, 1, 1]"}
    with pytest.raises(ConfigurationError) as raised:
        iceberg._find(properties, "shop.eu", TopicPartition("orders", 0))
    text = str(raised.value)
    for part in (old, new, "'[500, 1, 1]'", "group 'shop', topic 'eu.orders'", "group 'shop.eu', topic 'orders'"):
        assert part in text
    properties[new] = properties[old]  # as the text says
    assert iceberg._find(properties, "shop.eu", TopicPartition("orders", 0)) == "[500, 1, 1]"


@pytest.mark.parametrize("storage", ["sqlite", "directory", slow("delta"), slow("iceberg")], indirect=True)
def test_groups_and_topics_with_dots_have_offsets_of_their_own(storage: Storage) -> None:
    places: list[Any] = [("shop", TopicPartition("eu.orders", 0)), ("shop.eu", TopicPartition("orders", 0))]
    stores = [storage.open() for _ in places]
    for number, (store, (group, tp)) in enumerate(zip(stores, places, strict=True)):
        assert store.load(group, [tp]) == {}
        store.claim(group, [tp], 1, f"m{number}")
        with store.transaction({tp: (0, 500 + number)}, group=group):
            pass
    for number, (store, (group, tp)) in enumerate(zip(stores, places, strict=True)):
        assert store.load(group, [tp]) == {tp: 500 + number}
        with store.transaction({tp: (500 + number, 600)}, group=group):
            pass
