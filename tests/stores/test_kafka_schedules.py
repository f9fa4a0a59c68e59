"""Exactly once over thousands of schedules: see ``transaction_schedules``."""

from __future__ import annotations

import pytest

from tests.stores.transaction_schedules import MESSAGES, PARTITIONS, World

pytest.importorskip("confluent_kafka")  # its TopicPartition is used


def repeated_or_lost(world: World) -> bool:
    """True unless the committed output has each message once, in the order of its key."""
    found = world.run()
    return any(
        [value for value in found if value.startswith(b"%d:" % number)]
        != [b"%d:%d" % (number, offset) for offset in range(MESSAGES)]
        for number in range(PARTITIONS)
    )


def exactly_once(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        assert not repeated_or_lost(world), "\n".join([f"seed {seed}", *world.story])


def test_each_message_is_stored_once_in_order() -> None:
    exactly_once(range(60))


@pytest.mark.simulation
def test_each_message_is_stored_once_in_order_in_thousands_of_schedules() -> None:
    exactly_once(range(60, 10_000))


def test_without_the_membership_messages_are_stored_twice() -> None:
    """The control: the schedules are hard enough."""
    assert sum(repeated_or_lost(World(seed, blind=True)) for seed in range(60)) > 2
