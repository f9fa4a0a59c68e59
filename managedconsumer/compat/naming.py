"""Names of topics as users write them: str or bytes, ASCII, as pykafka takes them.  Pure."""

from __future__ import annotations

from typing import Any

from managedconsumer import errors as err
from managedconsumer.subscription_input import LEGAL_TOPIC


def to_text(value: Any, what: str) -> str:
    """``value`` (str or bytes) as str; TypeError, or UnicodeException where it is not ASCII, as in pykafka."""
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("ascii")
        except UnicodeDecodeError:
            raise err.UnicodeException(f"{what} {bytes(value)!r} contains non-ascii characters") from None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be str or bytes, not {type(value).__name__}: {value!r}")
    if not value.isascii():
        raise err.UnicodeException(f"{what} {value!r} contains non-ascii characters")
    return str(value)


def is_legal(name: str) -> bool:
    """Whether Kafka lets a topic have that name."""
    return bool(LEGAL_TOPIC.fullmatch(name)) and name not in (".", "..")


def checked_name(value: Any) -> str:
    """A topic's name as str; TypeError, UnicodeException, ConfigurationError."""
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
    """The name of a Topic object, pykafka's or ours; None for anything else."""
    name = getattr(topic, "name", None)
    if not isinstance(name, (str, bytes)) or not hasattr(topic, "partitions"):
        return None
    return to_text(name, "topic name")


def key_of(partition: Any) -> tuple[str, int] | None:
    """``(topic name, number)`` of a Partition object, pykafka's or ours; None for anything else."""
    number = getattr(partition, "id", None)
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    name = name_of(getattr(partition, "topic", None))
    return None if name is None else (name, number)
