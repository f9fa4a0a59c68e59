"""Names of topics and partitions in users' values, pykafka's objects and ours. Pure."""

from __future__ import annotations

from typing import Any

from managedconsumer import errors as err
from managedconsumer.config import to_text
from managedconsumer.subscription_input import is_legal


def checked_name(value: Any) -> str:
    """Return a topic's name as str; TypeError, UnicodeException, ConfigurationError."""
    name = to_text(value, "topic name")
    if not name:
        raise err.ConfigurationError("the topic's name is empty")
    if not is_legal(name):
        raise err.ConfigurationError(
            f"{name!r} is no legal topic name: 1 to 249 of a-z A-Z 0-9 . _ - are allowed (and not '.' or '..'); for a "
            "pattern pass re.compile(...)"
        )
    return name


def name_of(topic: Any) -> str | None:
    """Return the name of a Topic object, pykafka's or ours; None for anything else."""
    name = getattr(topic, "name", None)
    if not isinstance(name, (str, bytes)) or not hasattr(topic, "partitions"):
        return None
    return to_text(name, "topic name")


def key_of(partition: Any) -> tuple[str, int] | None:
    """Return ``(topic name, number)`` of a Partition object, pykafka's or ours; None for anything else."""
    number = getattr(partition, "id", None)
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    name = name_of(getattr(partition, "topic", None))
    return None if name is None else (name, number)
