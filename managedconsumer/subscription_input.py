"""Checks of a subscription's arguments; every error names the value and what is allowed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

from managedconsumer.structs import TopicPartition

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class RebalanceListener(Protocol):
    """The methods that ``subscribe`` needs."""

    def on_partitions_revoked(self, revoked: Any) -> Any:
        """Partitions are about to be given up."""

    def on_partitions_assigned(self, assigned: Any) -> Any:
        """Partitions have been given to this member."""


def is_legal(topic: str) -> bool:
    """Return whether Kafka lets a topic have that name."""
    return bool(_LEGAL_TOPIC.fullmatch(topic)) and topic not in (".", "..")


def checked_topics(topics: Iterable[str]) -> set[str]:
    """Return topic names as a set (a str is one name); TypeError, ValueError."""
    names = {topics} if isinstance(topics, str) else set(topics)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"topic names must be str, not {name!r}")
        if not is_legal(name):
            raise ValueError(f"{name!r} is no legal topic name: 1 to 249 of a-z A-Z 0-9 . _ - (and not '.' or '..')")
    return names


def checked_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return partitions in their order, each once; TypeError, ValueError."""
    checked = []
    for item in partitions:
        if not isinstance(item, tuple) or len(item) != 2:
            raise TypeError(f"partitions must be TopicPartition, not {item!r}")
        topic, number = item
        if not isinstance(topic, str) or isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"partitions must be TopicPartition(str, int), not {item!r}")
        if number < 0:
            raise ValueError(f"partition numbers start at 0, not {number} (topic {topic!r})")
        checked.append(TopicPartition(topic, number))
    return list(dict.fromkeys(checked))


def checked_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return a compiled pattern; TypeError, ValueError."""
    if isinstance(pattern, re.Pattern):
        if not isinstance(pattern.pattern, str):
            raise TypeError(f"pattern must be of str, not bytes: {pattern!r}")
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str or a compiled re.Pattern, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from None


def check_listener(listener: Any) -> Any:
    """Return ``listener``, which is None or has both callbacks; TypeError.

    Other clients' listeners (kafka-python's, aiokafka's) will do, too; for one without ``on_partitions_lost``,
    ``on_partitions_revoked`` is called instead.
    """
    methods = ("on_partitions_revoked", "on_partitions_assigned")
    if listener is None:
        return None
    if isinstance(listener, type):
        raise TypeError(f"listener must be an object, not the class {listener.__name__}: did you forget the ()?")
    missing = [name for name in methods if not callable(getattr(listener, name, None))]
    if missing:
        raise TypeError(
            "listener must be a ConsumerRebalanceListener or an AsyncConsumerRebalanceListener, not "
            f"{type(listener).__name__}: {listener!r} has no {' and no '.join(missing)}"
        )
    return listener
