"""Parse options: numbers, flags, JSON by partition, and where a read begins and ends. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.structs import TopicPartition

EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class Where:
    """Where to begin or to end: ``earliest``, ``latest``, ``committed``, or an ``offset`` or ``timestamp`` each.

    ``by_partition`` holds offsets (-2 and -1: earliest, latest) or timestamps in ms; ``timestamp`` one for all.
    ``said`` is the user's text, "" for a default.
    """

    kind: str
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None
    strict: bool = True
    said: str = field(default="", compare=False)


def number(options: Mapping[str, str], name: str, minimum: int, prefix: str = "") -> int | None:
    """Parse a whole number of at least ``minimum``; None if it is not given. Raises ConfigurationError."""
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise ConfigurationError(f"{prefix}{name} must be a whole number of at least {minimum}, not {text!r}")
    return value


def flag(options: Mapping[str, str], name: str, default: bool, prefix: str = "") -> bool:
    """Parse ``true`` or ``false``. Raises ConfigurationError."""
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{prefix}{name} must be true or false, not {text!r}")
    return text == "true"


def json_object(name: str, text: str, example: str, words: str = "") -> dict[str, Any]:
    """Parse a JSON object that is not empty. Raises ConfigurationError with the example, and other valid ``words``."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ConfigurationError(f"{name} must be {words}JSON as in {example}, not {text!r}")
    return value


def by_partition_of(name: str, text: str, lowest: int, words: str = "") -> dict[TopicPartition, int]:
    """Parse a number of at least ``lowest`` for each partition. Raises ConfigurationError (see :func:`json_object`)."""
    example = '{"page-views": {"0": 23, "1": ' + str(-2 if lowest < 0 else 1767225600000) + "}}"
    nested = json_object(name, text, example, words)
    try:
        found = {
            TopicPartition(topic, int(number)): value
            for topic, partitions in nested.items()
            for number, value in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(f"{name} must be {words}JSON as in {example}, not {text!r}") from None
    for tp, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ConfigurationError(
                f"{name}: {value!r} for {tp.topic}-{tp.partition} is not allowed; a number of at least {lowest}"
                + (" (-2: earliest, -1: latest)" if lowest < 0 else "")
            )
    return found


def starting(options: Mapping[str, str], streaming: bool, group: str | None) -> Where:
    """Parse where a read begins. Raises ConfigurationError."""
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigurationError(f"startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}")
    timestamp = number(options, "startingTimestamp", 0)
    if timestamp is not None:
        return Where("timestamp", timestamp=timestamp, strict=strategy == "error", said=f"timestamp {timestamp}")
    text = options.get("startingoffsetsbytimestamp")
    if text is not None:
        times = by_partition_of("startingOffsetsByTimestamp", text, 0)
        return Where("timestamp", times, strict=strategy == "error", said=f"timestamps {text}")
    said = options.get("startingoffsets", "").strip()
    text = options.get("startingoffsets", "latest" if streaming else "earliest").strip()
    word = text.lower()
    if word == "committed" and group is None:
        raise ConfigurationError("startingOffsets=committed needs the option group.id: committed by which group?")
    if word == "latest" and not streaming:
        raise ConfigurationError("startingOffsets=latest reads nothing in a batch: use earliest, committed or JSON")
    if word in ("earliest", "latest", "committed"):
        return Where(word, said=word if said else "")
    words = f"earliest, {'latest, ' if streaming else ''}{'committed, ' if group is not None else ''}or "
    return Where("offset", by_partition_of("startingOffsets", text, EARLIEST, words), said=said)


def ending(options: Mapping[str, str], streaming: bool) -> Where:
    """Parse where a batch read ends. Raises ConfigurationError."""
    names = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if streaming:
        for name in names:
            if name.lower() in options:
                raise ConfigurationError(f"{name} is for batch reads; a stream has no end (see Trigger.AvailableNow)")
        return Where("latest")
    timestamp = number(options, "endingTimestamp", 0)
    if timestamp is not None:
        return Where("timestamp", timestamp=timestamp)
    text = options.get("endingoffsetsbytimestamp")
    if text is not None:
        return Where("timestamp", by_partition_of("endingOffsetsByTimestamp", text, 0))
    text = options.get("endingoffsets", "latest").strip()
    if text.lower() == "latest":
        return Where("latest")
    return Where("offset", by_partition_of("endingOffsets", text, LATEST, "latest or "))
