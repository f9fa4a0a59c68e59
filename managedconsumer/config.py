"""Every consumer option once: its default, its unit, its range. Both consumers validate through here.

Bad values raise ``TypeError`` (wrong kind) or ``ConfigurationError`` (a ``ValueError``: wrong range); the text
names the argument, the value and what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Callable, Iterable

from managedconsumer.errors import ConfigurationError, UnicodeException
from managedconsumer.structs import OffsetResetStrategy, OffsetType

ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
GROUP_PROTOCOLS = ("classic", "consumer")

OnError = str | Callable[[BaseException, Any], str]
Deserializer = Callable[[Any, Any], Any]

_RESETS = {
    OffsetType.EARLIEST: "earliest",
    OffsetType.LATEST: "latest",
    OffsetResetStrategy.NONE: "none",
    "earliest": "earliest",
    "latest": "latest",
    "none": "none",
}


def check_int(name: str, value: Any, minimum: int = 1, unit: str = "", also: tuple[int, ...] = ()) -> int:
    """``value`` as an int of at least ``minimum``, or one of ``also``; floats and bools pass as in pykafka."""
    allowed = f"a number of at least {minimum}{' ' + unit if unit else ''}"
    if also:
        allowed += f", or {' or '.join(map(str, also))}"
    if not isinstance(value, Real | int):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: {allowed} is needed")
    try:
        number = int(float(value)) if not isinstance(value, int) else int(value)
    except (OverflowError, ValueError):
        raise ConfigurationError(f"{name}={value!r}: {allowed} is needed") from None
    if number < minimum and number not in also:
        raise ConfigurationError(f"{name}={value!r}: {allowed} is needed")
    return number


def check_choice(name: str, value: Any, allowed: Any) -> Any:
    """``value`` if it is one of ``allowed``."""
    if value not in tuple(allowed):  # a tuple compares, a dict would complain of what cannot be hashed
        raise ConfigurationError(f"{name}={value!r}: one of {', '.join(map(repr, allowed))} is needed")
    return value


def check_names(consumer: str, given: Iterable[str], *known: type) -> None:
    """Every option in ``given`` is a field of one of the classes ``known``; a TypeError as Python's own otherwise."""
    names = {field.name for options in known for field in fields(options)}
    for name in given:
        if name not in names:
            raise TypeError(f"{consumer}() got an unexpected keyword argument {name!r}")


def check_callable(name: str, value: Any) -> Any:
    """``value`` if it is None or can be called."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: a function (or None) is needed")
    return value


def check_group(value: Any, *, required: bool) -> str | None:
    """A consumer group's name: str or bytes, ASCII as in pykafka (UnicodeException otherwise), not empty."""
    if value is None and not required:
        return None
    if isinstance(value, (bytes, bytearray)):
        try:
            value = bytes(value).decode("ascii")
        except UnicodeDecodeError:
            raise UnicodeException(f"consumer_group={value!r}: only ASCII characters are allowed") from None
    if value is None:
        raise ConfigurationError("consumer_group=None: a managed consumer needs the name of its group (str or bytes)")
    if not isinstance(value, str):
        raise TypeError(f"consumer_group={value!r} is a {type(value).__name__}: str or bytes is needed")
    if not value.isascii():
        raise UnicodeException(f"consumer_group={value!r}: only ASCII characters are allowed")
    if not value:
        raise ConfigurationError("consumer_group='': the name of a group cannot be empty")
    return value


def check_reset(value: Any) -> str:
    """``auto_offset_reset`` as ``"earliest"``, ``"latest"`` or ``"none"``."""
    try:
        return _RESETS[value]
    except (KeyError, TypeError):
        raise ConfigurationError(
            f"auto_offset_reset={value!r}: OffsetType.EARLIEST (-2), OffsetType.LATEST (-1), 'earliest', 'latest' or "
            "'none' (raise) is needed"
        ) from None


@dataclass
class ConsumerOptions:
    """What SimpleConsumer and ManagedBalancedConsumer have in common; times in milliseconds, sizes in bytes."""

    fetch_message_max_bytes: int = 1024 * 1024
    num_consumer_fetchers: int = 1
    auto_commit_enable: bool = False
    auto_commit_interval_ms: int = 60 * 1000
    queued_max_messages: int = 2000
    fetch_min_bytes: int = 1
    fetch_error_backoff_ms: int = 500
    fetch_wait_max_ms: int = 100
    offsets_channel_backoff_ms: int = 1000
    offsets_commit_max_retries: int = 5
    auto_offset_reset: Any = OffsetType.EARLIEST
    consumer_timeout_ms: int = -1
    reset_offset_on_start: bool = False
    compacted_topic: bool = False
    deserializer: Deserializer | None = None
    reset_offset_on_fetch: bool = True
    isolation_level: str = "read_uncommitted"
    client_rack: str | None = None
    queued_max_bytes: int = 64 * 1024 * 1024
    on_error: OnError = "raise"
    use_rdkafka: bool = False

    def __post_init__(self) -> None:
        self.fetch_message_max_bytes = check_int("fetch_message_max_bytes", self.fetch_message_max_bytes, 1, "byte")
        self.num_consumer_fetchers = check_int("num_consumer_fetchers", self.num_consumer_fetchers)
        self.auto_commit_interval_ms = check_int("auto_commit_interval_ms", self.auto_commit_interval_ms, 1, "ms")
        self.queued_max_messages = check_int("queued_max_messages", self.queued_max_messages)
        self.queued_max_bytes = check_int("queued_max_bytes", self.queued_max_bytes, 1, "byte")
        self.fetch_min_bytes = check_int("fetch_min_bytes", self.fetch_min_bytes, 0, "bytes")
        self.fetch_wait_max_ms = check_int("fetch_wait_max_ms", self.fetch_wait_max_ms, 0, "ms")
        self.fetch_error_backoff_ms = check_int("fetch_error_backoff_ms", self.fetch_error_backoff_ms, 0, "ms")
        self.offsets_channel_backoff_ms = check_int("offsets_channel_backoff_ms", self.offsets_channel_backoff_ms, 0)
        self.offsets_commit_max_retries = check_int("offsets_commit_max_retries", self.offsets_commit_max_retries, 0)
        self.consumer_timeout_ms = check_int("consumer_timeout_ms", self.consumer_timeout_ms, 0, "ms", also=(-1,))
        self.auto_offset_reset = check_reset(self.auto_offset_reset)
        check_callable("deserializer", self.deserializer)
        check_choice("isolation_level", self.isolation_level, ISOLATION_LEVELS)
        if not callable(self.on_error) and self.on_error not in ("raise", "skip"):
            raise ConfigurationError(
                f"on_error={self.on_error!r}: 'raise', 'skip' or a function of (error, message) is needed"
            )
        if self.client_rack is not None and not isinstance(self.client_rack, str):
            raise TypeError(f"client_rack={self.client_rack!r}: a str is needed")

    @property
    def isolation(self) -> int:
        """The number that the protocol uses for the isolation level."""
        return ISOLATION_LEVELS[self.isolation_level]


@dataclass
class GroupOptions:
    """What a group member has besides; times in milliseconds."""

    rebalance_max_retries: int = 5
    rebalance_backoff_ms: int = 2000
    heartbeat_interval_ms: int = 3000
    session_timeout_ms: int = 45000
    rebalance_timeout_ms: int = 300000
    max_processing_ms: int | None = None
    revoke_drain_ms: int = 1000
    group_protocol: str = "classic"
    group_instance_id: str | None = None
    post_rebalance_callback: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name, minimum in (
            ("rebalance_max_retries", 0),
            ("rebalance_backoff_ms", 0),
            ("heartbeat_interval_ms", 1),
            ("session_timeout_ms", 1),
            ("rebalance_timeout_ms", 1),
            ("revoke_drain_ms", 0),
        ):
            setattr(self, name, check_int(name, getattr(self, name), minimum, "ms" if name.endswith("_ms") else ""))
        if self.max_processing_ms is not None:
            self.max_processing_ms = check_int("max_processing_ms", self.max_processing_ms, 1, "ms")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be lower than session_timeout_ms="
                f"{self.session_timeout_ms}; a third of it is usual"
            )
        check_choice("group_protocol", self.group_protocol, GROUP_PROTOCOLS)
        check_callable("post_rebalance_callback", self.post_rebalance_callback)
        if self.group_instance_id is not None and not (
            isinstance(self.group_instance_id, str) and self.group_instance_id
        ):
            raise ConfigurationError(f"group_instance_id={self.group_instance_id!r}: a str that is not empty is needed")
