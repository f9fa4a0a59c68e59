"""Every consumer option once: its default, its unit, its range. Both consumers validate through here.

Bad values raise TypeError (wrong type) or ConfigurationError (a ValueError: out of range); the text names the argument,
the value and what is allowed. A type checker needs each option in two more places: the signature of
``ManagedBalancedConsumer`` and ``typed_options``. ``tests/test_config.py`` and ``tests/typed`` compare them with this.
"""

from __future__ import annotations

import re
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Iterable, Literal, Mapping, ParamSpec, Union

from managedconsumer.errors import ConfigurationError, UnicodeException
from managedconsumer.structs import Ago, OffsetResetStrategy, OffsetType

if TYPE_CHECKING:
    from datetime import timedelta

ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
GROUP_PROTOCOLS = ("auto", "classic", "consumer")

_P = ParamSpec("_P")

OnError = str | Callable[[BaseException, Any], str]
Deserializer = Callable[[Any, Any], Any]
#: ``int``: pykafka's :class:`~managedconsumer.OffsetType`, or kafka-python's OffsetResetStrategy.
OffsetReset = Union[int, Literal["earliest", "latest", "none"], "timedelta"]
#: Numbers of at least 1, and of at least 0.
Positive = int
NotNegative = int
_MINIMUM = {"Positive": 1, "NotNegative": 0}
Isolation = Literal["read_uncommitted", "read_committed"]
GroupProtocol = Literal["auto", "classic", "consumer"]

_RESETS = {
    OffsetType.EARLIEST: "earliest",
    OffsetType.LATEST: "latest",
    OffsetResetStrategy.NONE: "none",
    "earliest": "earliest",
    "latest": "latest",
    "none": "none",
}
_DURATION = re.compile(
    r"by_duration:P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII | re.IGNORECASE
)


def wrong_kind(name: str, value: Any, allowed: str) -> TypeError:
    """Return the error for a ``value`` of the wrong type: it names the argument, what is allowed, type and value."""
    return TypeError(f"{name} must be {allowed}, not {type(value).__name__}: {value!r}")


def wrong_value(name: str, value: Any, allowed: str) -> ConfigurationError:
    """Return the error for a ``value`` that is out of range: it names the argument, what is allowed and the value."""
    return ConfigurationError(f"{name} must be {allowed}, not {value!r}")


def check_int(name: str, value: Any, minimum: int = 1, unit: str = "", also: tuple[int, ...] = ()) -> int:
    """Return ``value`` as an int of at least ``minimum``, or one of ``also``; floats and bools pass as in pykafka."""
    allowed = f"a number of at least {minimum}{' ' + unit if unit else ''}"
    if also:
        allowed += f" (or {' or '.join(map(str, also))})"
    if not isinstance(value, Real | int):
        raise wrong_kind(name, value, allowed)
    try:
        number = int(float(value)) if not isinstance(value, int) else int(value)
    except (OverflowError, ValueError):
        raise wrong_value(name, value, allowed) from None
    if number < minimum and number not in also:
        raise wrong_value(name, value, allowed)
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return ``value`` as a bool; 0 and 1 pass. All else raises TypeError: the text ``"false"`` would count as true."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral) and value in (0, 1):
        return bool(value)
    raise wrong_kind(name, value, "True or False")


def check_choice(name: str, value: Any, allowed: Any) -> Any:
    """Return ``value`` if it is one of ``allowed``."""
    if value not in tuple(allowed):  # a tuple compares, a dict would complain of what cannot be hashed
        raise wrong_value(name, value, f"one of {', '.join(map(repr, allowed))}")
    return value


#: Arguments of KafkaClient, which a consumer does not take.
CLIENT_ARGUMENTS = tuple(
    (
        "hosts socket_timeout_ms offsets_channel_socket_timeout_ms exclude_internal_topics source_address ssl_config "
        "broker_version security metadata_max_age_ms client_id security_protocol ssl_context ssl_cafile ssl_certfile "
        "ssl_keyfile ssl_password ssl_check_hostname sasl_mechanism sasl_username sasl_password sasl_oauth_token "
        "sasl_oauth_extensions"
    ).split()
)
#: An argument's name in other Kafka clients, and here.
_NAMES_ELSEWHERE = {
    "bootstrap_servers": "cluster",
    "enable_auto_commit": "auto_commit_enable",
    "fetch_max_wait_ms": "fetch_wait_max_ms",
    "group": "consumer_group",
    "group_id": "consumer_group",
    "key_deserializer": "deserializer",
    "max_partition_fetch_bytes": "fetch_message_max_bytes",
    "max_poll_interval_ms": "max_processing_ms",
    "partition_assignment_strategy": "membership_protocol",
    "rebalance_listener": "listener",
    "topics": "topic",
    "value_deserializer": "deserializer",
}


def names_checked(*known: Iterable[str]) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Decorate a consumer's constructor: an unknown option raises TypeError with the likely name.

    Options are the constructor's own parameters, and those in ``known``, which it takes as ``**more``. A dict in place
    of the topic raises TypeError, too, see :func:`refuse_dict`.
    """

    def decorate(init: Callable[_P, None]) -> Callable[_P, None]:
        code = init.__code__
        own = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        names = frozenset(own).union(*known)

        @wraps(init)
        def checked(*args: _P.args, **given: _P.kwargs) -> None:
            refuse_dict(*args[:2])
            for name in given:
                if name not in names:
                    raise unexpected_argument(type(args[0]).__name__, name, names)
            init(*args, **given)

        return checked

    return decorate


def refuse_dict(callee: object, first: object = None) -> None:
    """Raise TypeError, which says what to write, for options in a dict (confluent-kafka's way)."""
    if isinstance(first, Mapping):  # not shown: it may have a password
        name = callee if isinstance(callee, str) else type(callee).__name__
        group = "consumer_group='billing'" if name == "SimpleConsumer" else "'billing'"
        example = "'localhost:9092'" if name == "KafkaClient" else f"'orders', 'localhost:9092', {group}"
        raise TypeError(
            f"{name}() takes no dict of options, as confluent-kafka's clients do: write {name}({example}, ...), with "
            "each option as a keyword argument"
        )


def unexpected_argument(callee: str, name: str, known: Iterable[str]) -> TypeError:
    """Return Python's error for an unknown keyword argument, with the name that was probably meant."""
    from difflib import get_close_matches  # not at the top: only a mistake needs it

    known = sorted(known)
    elsewhere = _NAMES_ELSEWHERE.get(name)
    near = [elsewhere] if elsewhere in known else get_close_matches(name, known, 1)
    if name in CLIENT_ARGUMENTS:
        hint = f": it belongs to KafkaClient. Pass KafkaClient(hosts=..., {name}=...) as cluster"
    else:
        hint = f": did you mean {near[0]}?" if near else ""
    return TypeError(f"{callee}() got an unexpected keyword argument {name!r}{hint}")


def check_callable(name: str, value: Any) -> Any:
    """Return ``value`` if it is None or can be called."""
    if value is not None and not callable(value):
        raise wrong_kind(name, value, "a function (or None)")
    return value


def to_text(value: Any, what: str) -> str:
    """Return ``value`` (str or bytes) as str; TypeError, or UnicodeException where it is not ASCII, as in pykafka."""
    text = bytes(value).decode("latin-1") if isinstance(value, bytes | bytearray) else value
    if not isinstance(text, str):
        raise wrong_kind(what, value, "str or bytes")
    if not text.isascii():
        raise UnicodeException(f"{what}={value!r}: only ASCII characters are allowed")
    return str(text)


def check_group(value: Any, *, required: bool) -> str | None:
    """Return a consumer group's name as str, see :func:`to_text`; it cannot be empty."""
    if value is None and not required:
        return None
    if value is None:
        raise ConfigurationError("consumer_group=None: a managed consumer needs the name of its group (str or bytes)")
    name = to_text(value, "consumer_group")
    if not name:
        raise ConfigurationError("consumer_group='': the name of a group cannot be empty")
    return name


def check_reset(value: Any) -> str:
    """Return ``auto_offset_reset`` as ``"earliest"``, ``"latest"``, ``"none"`` or ``"by_duration:..."``."""
    try:
        return _RESETS[value]
    except (KeyError, TypeError):
        from datetime import timedelta  # here, as it takes two milliseconds

        if isinstance(value, timedelta) and value >= timedelta(milliseconds=1):
            return f"by_duration:PT{value // timedelta(milliseconds=1) / 1000:.3f}S"
        if isinstance(value, str) and duration_of(value) is not None:
            return value
        allowed = (
            "OffsetType.EARLIEST (-2), OffsetType.LATEST (-1), 'earliest', 'latest' or 'none' (raise), or a timedelta "
            "above 0 or text like 'by_duration:P1DT2H30M'"
        )
        raise wrong_value("auto_offset_reset", value, allowed) from None


def duration_of(reset: str) -> Ago | None:
    """Return the duration in ``"by_duration:P1DT2H30M5.5S"`` (KIP-1106), or None."""
    found = _DURATION.fullmatch(reset)
    units = zip(() if found is None else found.groups("0"), (86_400, 3_600, 60, 1), strict=False)
    return Ago(round(1000 * sum(float(number) * seconds for number, seconds in units))) or None


class _Options:
    """Options as a class's annotated attributes, whose values are the defaults."""

    #: Their names.
    _fields: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, **given: Any) -> None:
        for name, value in given.items():
            if name not in self._fields:
                raise unexpected_argument(type(self).__name__, name, self._fields)
            setattr(self, name, value)
        for name, kind in type(self).__annotations__.items():
            if kind == "bool":
                setattr(self, name, check_bool(name, getattr(self, name)))
            elif (least := _MINIMUM.get(kind)) is not None:
                setattr(self, name, check_int(name, getattr(self, name), least, _unit(name, least)))
        self._check()

    def _check(self) -> None:
        """Validate and convert the options that are neither numbers nor bools; raises TypeError, ConfigurationError."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"


def _unit(name: str, minimum: int) -> str:
    size = "byte" if minimum == 1 else "bytes"
    return "ms" if name.endswith("_ms") else size if name.endswith("_bytes") else ""


class ConsumerOptions(_Options):
    """The options that SimpleConsumer and ManagedBalancedConsumer share; times in milliseconds, sizes in bytes."""

    fetch_message_max_bytes: Positive = 1024 * 1024
    num_consumer_fetchers: Positive = 1
    auto_commit_enable: bool = False
    auto_commit_interval_ms: Positive = 60 * 1000
    queued_max_messages: Positive = 2000
    fetch_min_bytes: NotNegative = 1
    fetch_error_backoff_ms: NotNegative = 500
    fetch_wait_max_ms: NotNegative = 100
    offsets_channel_backoff_ms: NotNegative = 1000
    offsets_commit_max_retries: NotNegative = 5
    auto_offset_reset: Any = OffsetType.EARLIEST
    consumer_timeout_ms: int = -1
    reset_offset_on_start: bool = False
    compacted_topic: bool = False
    deserializer: Deserializer | None = None
    reset_offset_on_fetch: bool = True
    isolation_level: str = "read_uncommitted"
    client_rack: str | None = None
    queued_max_bytes: Positive = 64 * 1024 * 1024
    on_error: OnError = "raise"
    use_rdkafka: bool = False
    enable_metrics_push: bool = True

    def _check(self) -> None:
        self.consumer_timeout_ms = check_int("consumer_timeout_ms", self.consumer_timeout_ms, 0, "ms", also=(-1,))
        self.auto_offset_reset = check_reset(self.auto_offset_reset)
        check_callable("deserializer", self.deserializer)
        check_choice("isolation_level", self.isolation_level, ISOLATION_LEVELS)
        if not callable(self.on_error) and self.on_error not in ("raise", "skip"):
            raise wrong_value("on_error", self.on_error, "'raise', 'skip' or a function of (error, message)")
        if self.client_rack is not None and not isinstance(self.client_rack, str):
            raise wrong_kind("client_rack", self.client_rack, "a str (or None)")

    @property
    def isolation(self) -> int:
        """The protocol's number of the isolation level."""
        return ISOLATION_LEVELS[self.isolation_level]


class GroupOptions(_Options):
    """The further options of a group member; times in milliseconds."""

    rebalance_max_retries: NotNegative = 5
    rebalance_backoff_ms: NotNegative = 2000
    heartbeat_interval_ms: Positive = 3000
    session_timeout_ms: Positive = 45000
    rebalance_timeout_ms: Positive = 300000
    max_processing_ms: int | None = None
    revoke_drain_ms: NotNegative = 1000
    group_protocol: str = "auto"
    group_instance_id: str | None = None
    post_rebalance_callback: Callable[..., Any] | None = None
    history: str | PathLike[str] | None = None

    def _check(self) -> None:
        if self.max_processing_ms is not None:
            self.max_processing_ms = check_int("max_processing_ms", self.max_processing_ms, 1, "ms")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be lower than session_timeout_ms="
                f"{self.session_timeout_ms}; a third of it is usual"
            )
        check_choice("group_protocol", self.group_protocol, GROUP_PROTOCOLS)
        check_callable("post_rebalance_callback", self.post_rebalance_callback)
        if self.history is not None and not (isinstance(self.history, str | PathLike) and str(self.history)):
            raise wrong_kind("history", self.history, "the path of a file (or None)")
        if self.group_instance_id is not None and not (
            isinstance(self.group_instance_id, str) and self.group_instance_id
        ):
            raise wrong_value("group_instance_id", self.group_instance_id, "a str that is not empty (or None)")

    def left_to_the_broker(self) -> list[str]:
        """Return the names of changed options that the broker decides under KIP-848."""
        names = ("session_timeout_ms", "heartbeat_interval_ms")
        return [name for name in names if getattr(self, name) != getattr(GroupOptions, name)]
