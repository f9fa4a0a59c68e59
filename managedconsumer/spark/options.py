"""The options of the data source: the names of Spark's own Kafka source, and a few more. Checked at once, all of them.

``docs/spark.rst`` describes them for users. A name that is not known is an error, so that a typing mistake does not
become a default; Kafka settings (``kafka.*``) that have no meaning here are reported in the log and ignored.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from dataclasses import dataclass, field
from typing import Any, Mapping

from managedconsumer.config import ISOLATION_LEVELS
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.cluster import parse_bootstrap
from managedconsumer.runtime.fetch_range import RangeLimits
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.spark.security import security_from
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records.arrow import COLUMNS, DEFAULT_COLUMNS, check_columns

log = logging.getLogger(__name__)

_OWN = """
    subscribe assign subscribePattern columns includeHeaders group.id store
    startingOffsets startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy
    endingOffsets endingTimestamp endingOffsetsByTimestamp maxOffsetsPerTrigger minPartitions failOnDataLoss
    fetchOffset.numRetries fetchOffset.retryIntervalMs kafkaConsumer.pollTimeoutMs
""".split()  # noqa: SIM905 (three lines instead of twenty)
# Spark's, and not to be had here: better said than silently without effect.
_NOT_HERE = {
    "minoffsetspertrigger": "use a processing-time trigger",
    "maxtriggerdelay": "use a processing-time trigger",
    "maxrecordsperpartition": "use minPartitions",
    "groupidprefix": "use group.id: the query is a member of that group",
}
_KAFKA = """
    bootstrap.servers group.id client.id client.rack isolation.level check.crcs fetch.max.wait.ms
    max.partition.fetch.bytes request.timeout.ms session.timeout.ms heartbeat.interval.ms max.poll.interval.ms
    group.instance.id partition.assignment.strategy metadata.max.age.ms
""".split()  # noqa: SIM905
# Settings that would contradict the source; Spark refuses them as well.
_KAFKA_REFUSED = {
    "auto.offset.reset": "use the option startingOffsets",
    "enable.auto.commit": "offsets are committed when a batch is done",
    "key.deserializer": "key and value are binary columns; use DataFrame functions",
    "value.deserializer": "key and value are binary columns; use DataFrame functions",
    "interceptor.classes": "there is no JVM consumer to intercept",
}
_ASSIGNORS = {
    "range": "RangePartitionAssignor",
    "roundrobin": "RoundRobinPartitionAssignor",
    "sticky": "StickyPartitionAssignor",
    "cooperative-sticky": "CooperativeStickyPartitionAssignor",
}
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class Topics:
    """Which partitions are read: topics by name, chosen partitions, or topics by pattern."""

    names: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True)
class Where:
    """Where to begin or to end: ``earliest``, ``latest``, ``committed``, or an ``offset`` or ``timestamp`` each.

    ``by_partition`` holds offsets (-2 and -1: earliest, latest) or timestamps in ms; ``timestamp`` one for all.
    """

    kind: str
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None
    strict: bool = True


@dataclass(frozen=True)
class SourceOptions:
    """All options of one read, checked. Kafka settings are kept as they came, without a repr: there are secrets."""

    bootstrap: str
    topics: Topics
    starting: Where
    ending: Where
    group_id: str | None
    max_offsets: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    store: str | None
    patience: float
    kafka: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Read the options of a ``spark.read`` or ``spark.readStream``; raises ConfigurationError."""
        given = {name.lower(): str(value) for name, value in options.items()}
        kafka = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
        own = {name: value for name, value in given.items() if not name.startswith("kafka.")}
        _refuse_unknown(own, kafka)
        bootstrap = kafka.get("bootstrap.servers", "")
        if not bootstrap:
            raise ConfigurationError(
                "the option kafka.bootstrap.servers is missing: "
                '.option("kafka.bootstrap.servers", "localhost:9092"), for example'
            )
        parse_bootstrap(bootstrap)
        group = own.get("group.id") or kafka.get("group.id") or None
        found = cls(
            bootstrap=bootstrap,
            topics=_topics(own),
            starting=_starting(own, streaming, group),
            ending=_ending(own, streaming),
            group_id=group,
            max_offsets=_number(own, "maxOffsetsPerTrigger", 1),
            min_partitions=_number(own, "minPartitions", 1),
            fail_on_data_loss=_flag(own, "failOnDataLoss", True),
            columns=_columns(own),
            store=own.get("store") or None,
            patience=_or(_number(own, "kafkaConsumer.pollTimeoutMs", 1), 120_000) / 1000.0,
            kafka=kafka,
        )
        # So that a wrong setting is seen where the query is written and not in a task.
        found.settings(), found.limits(), found.assignor_names()
        if group is not None:
            found.membership()
        if found.store is not None and not streaming:
            raise ConfigurationError("the option store is for streams: a batch read claims nothing")
        return found

    def identity(self) -> tuple[tuple[str, str], ...]:
        """What makes two reads able to share connections."""
        return tuple(sorted(self.kafka.items()))

    def settings(self) -> ConnectionSettings:
        """How to connect."""
        return ConnectionSettings(
            client_id=self.kafka.get("client.id", "managedconsumer-spark"),
            request_timeout_ms=_kafka_number(self.kafka, "request.timeout.ms", 1, 30_000),
            security=security_from(self.kafka),
        )

    def limits(self) -> RangeLimits:
        """How the executors fetch."""
        return RangeLimits(
            partition_max_bytes=_kafka_number(self.kafka, "max.partition.fetch.bytes", 1, 1024 * 1024),
            max_wait_ms=_kafka_number(self.kafka, "fetch.max.wait.ms", 0, 500),
            isolation_level=self.isolation_level,
            check_crcs=_flag(self.kafka, "check.crcs", True, "kafka."),
            patience=self.patience,
            size_option="kafka.max.partition.fetch.bytes",
        )

    @property
    def isolation_level(self) -> int:
        """0 read_uncommitted, 1 read_committed."""
        level = self.kafka.get("isolation.level", "read_uncommitted").lower()
        if level not in ISOLATION_LEVELS:
            raise ConfigurationError(
                f"kafka.isolation.level must be one of {', '.join(ISOLATION_LEVELS)}, not {level!r}"
            )
        return ISOLATION_LEVELS[level]

    def membership(self) -> MembershipConfig:
        """What the query tells the group's coordinator; the rebalance timeout must exceed batch plus trigger."""
        session = _kafka_number(self.kafka, "session.timeout.ms", 1, 45_000)
        return MembershipConfig(
            group_id=self.group_id or "",
            session_timeout_ms=session,
            rebalance_timeout_ms=_kafka_number(self.kafka, "max.poll.interval.ms", 1, 300_000),
            heartbeat_interval_ms=_kafka_number(self.kafka, "heartbeat.interval.ms", 1, min(3000, session // 3)),
            group_instance_id=self.kafka.get("group.instance.id") or None,
        )

    def assignor_names(self) -> list[str]:
        """Class names of the assignors to offer, best first."""
        wanted = self.kafka.get("partition.assignment.strategy", "range")
        names = []
        for word in filter(None, (part.strip() for part in wanted.split(","))):
            short = word.rsplit(".", 1)[-1]
            name = _ASSIGNORS.get(word.lower()) or next(
                (c for c in _ASSIGNORS.values() if c == _java_name(short)), None
            )
            if name is None:
                raise ConfigurationError(
                    f"kafka.partition.assignment.strategy must be one or more of {', '.join(_ASSIGNORS)}, not {word!r}"
                )
            names.append(name)
        return names or ["RangePartitionAssignor"]


def _java_name(short: str) -> str:
    known = {"RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"}
    return short.replace("Assignor", "PartitionAssignor") if short in known else short


def _refuse_unknown(own: Mapping[str, str], kafka: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OWN}
    for name in own:
        if name in _NOT_HERE:
            raise ConfigurationError(f"the option {name} is not supported by this source: {_NOT_HERE[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *(f"kafka.{n}" for n in _KAFKA)], 1)
            hint = f"did you mean {known.get(near[0], near[0])}?" if near else f"known are {', '.join(_OWN)}, kafka.*"
            raise ConfigurationError(f"the option {name!r} is not known: {hint}")
    for name in kafka:
        if name in _KAFKA_REFUSED:
            raise ConfigurationError(f"kafka.{name} cannot be set: {_KAFKA_REFUSED[name]}")
        if name not in _KAFKA and not name.startswith(("security.", "sasl.", "ssl.")):
            log.info("kafka.%s has no meaning for this source and is ignored", name)


def _number(options: Mapping[str, str], name: str, minimum: int, prefix: str = "") -> int | None:
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


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _kafka_number(kafka: Mapping[str, str], name: str, minimum: int, default: int) -> int:
    return _or(_number(kafka, name, minimum, "kafka."), default)


def _flag(options: Mapping[str, str], name: str, default: bool, prefix: str = "") -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{prefix}{name} must be true or false, not {text!r}")
    return text == "true"


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    headers = _flag(options, "includeHeaders", False)
    if "columns" not in options:
        return COLUMNS if headers else DEFAULT_COLUMNS
    names = [name.strip() for name in options["columns"].split(",") if name.strip()]
    exact = {name.lower(): name for name in COLUMNS}
    try:
        chosen = check_columns([exact.get(name.lower(), name) for name in names])
    except ValueError as error:
        raise ConfigurationError(f"the option columns={options['columns']!r}: {error}") from None
    return (*chosen, "headers") if headers and "headers" not in chosen else chosen


def _topics(options: Mapping[str, str]) -> Topics:
    given = [name for name in ("subscribe", "assign", "subscribepattern") if options.get(name)]
    if len(given) != 1:
        raise ConfigurationError(
            "give exactly one of the options subscribe (topics, separated by commas), subscribePattern and assign"
            + (f", not {' and '.join(given)}" if given else "")
        )
    text = options[given[0]]
    if given[0] == "subscribe":
        return Topics(names=tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())))
    if given[0] == "subscribepattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigurationError(f"subscribePattern={text!r} is no regular expression: {error}") from None
        return Topics(pattern=text)
    if options.get("group.id") or options.get("kafka.group.id"):
        raise ConfigurationError("assign and group.id exclude each other: a group assigns the partitions itself")
    nested = _json("assign", text, '{"page-views": [0, 1]}')
    try:
        chosen = tuple(TopicPartition(topic, int(number)) for topic, numbers in nested.items() for number in numbers)
    except (TypeError, ValueError):
        raise ConfigurationError(f'assign must name partitions as in {{"page-views": [0, 1]}}, not {text!r}') from None
    return Topics(partitions=chosen)


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ConfigurationError(f"{name} must be JSON as in {example}, not {text!r}")
    return value


def _by_partition(name: str, text: str, lowest: int) -> dict[TopicPartition, int]:
    example = '{"page-views": {"0": 23, "1": ' + str(-2 if lowest < 0 else 1767225600000) + "}}"
    nested = _json(name, text, example)
    try:
        found = {
            TopicPartition(topic, int(number)): value
            for topic, partitions in nested.items()
            for number, value in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(f"{name} must be JSON as in {example}, not {text!r}") from None
    for tp, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ConfigurationError(
                f"{name}: {value!r} for {tp.topic}-{tp.partition} is not allowed; a number of at least {lowest}"
                + (" (-2: earliest, -1: latest)" if lowest < 0 else "")
            )
    return found


def _starting(options: Mapping[str, str], streaming: bool, group: str | None) -> Where:
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigurationError(f"startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}")
    timestamp = _number(options, "startingTimestamp", 0)
    if timestamp is not None:
        return Where("timestamp", timestamp=timestamp, strict=strategy == "error")
    text = options.get("startingoffsetsbytimestamp")
    if text is not None:
        times = _by_partition("startingOffsetsByTimestamp", text, 0)
        return Where("timestamp", times, strict=strategy == "error")
    text = options.get("startingoffsets", "latest" if streaming else "earliest").strip()
    word = text.lower()
    if word == "committed" and group is None:
        raise ConfigurationError("startingOffsets=committed needs the option group.id: committed by which group?")
    if word == "latest" and not streaming:
        raise ConfigurationError("startingOffsets=latest reads nothing in a batch: use earliest, committed or JSON")
    if word in ("earliest", "latest", "committed"):
        return Where(word)
    return Where("offset", _by_partition("startingOffsets", text, EARLIEST))


def _ending(options: Mapping[str, str], streaming: bool) -> Where:
    names = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if streaming:
        for name in names:
            if name.lower() in options:
                raise ConfigurationError(f"{name} is for batch reads; a stream has no end (see Trigger.AvailableNow)")
        return Where("latest")
    timestamp = _number(options, "endingTimestamp", 0)
    if timestamp is not None:
        return Where("timestamp", timestamp=timestamp)
    text = options.get("endingoffsetsbytimestamp")
    if text is not None:
        return Where("timestamp", _by_partition("endingOffsetsByTimestamp", text, 0))
    text = options.get("endingoffsets", "latest").strip()
    if text.lower() == "latest":
        return Where("latest")
    if text.lower() in ("earliest", "committed"):
        raise ConfigurationError(f"endingOffsets must be latest or JSON, not {text!r}")
    return Where("offset", _by_partition("endingOffsets", text, LATEST))
