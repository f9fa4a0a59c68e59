"""The options of the data source: the names of Spark's own Kafka source, and a few more. All are checked at once.

``docs/reference/spark_options.rst`` lists them for users. An unknown name is an error, so that a typo does not become
a default. Kafka settings (``kafka.*``) without a meaning here are logged and ignored.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Mapping

from managedconsumer.config import ISOLATION_LEVELS
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.runtime.cluster.cluster import parse_bootstrap
from managedconsumer.runtime.fetch_range import RangeLimits
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.shown import without_secrets
from managedconsumer.spark.catalog import of_user
from managedconsumer.spark.columns import ERRORS, check_names
from managedconsumer.spark.pace import LONGEST_DELAY, seconds
from managedconsumer.spark.positions import AUTO, CONFLICTS
from managedconsumer.spark.security import TokenProvider, security_from
from managedconsumer.spark.where import Where, ending, flag, json_object, number, starting
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records.arrow import COLUMNS, DEFAULT_COLUMNS

# Each reader and each worker imports this file, so modules that few queries need are imported where they are used.
if TYPE_CHECKING:
    from managedconsumer.decoding.formats import ValueFormat

log = logging.getLogger(__name__)

_OWN = """
    subscribe assign subscribePattern columns includeHeaders group.id group.mode offsetConflict store claims
    value.format value.schema value.message value.registry value.subject
    key.format key.schema key.message key.registry key.subject registry.token.provider registry.ca.location
    startingOffsets startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy
    endingOffsets endingTimestamp endingOffsetsByTimestamp maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay
    minPartitions maxRecordsPerPartition groupIdPrefix failOnDataLoss
    kafkaConsumer.pollTimeoutMs
""".split()
# Options of Spark, or natural guesses, that this source does not have.
_NOT_HERE = dict.fromkeys(
    ("fetchoffset.numretries", "fetchoffset.retryintervalms"),
    "offsets are asked for again for as long as kafkaConsumer.pollTimeoutMs says",
)
_KAFKA = """
    bootstrap.servers group.id client.id client.rack isolation.level check.crcs fetch.max.wait.ms
    max.partition.fetch.bytes request.timeout.ms session.timeout.ms heartbeat.interval.ms max.poll.interval.ms
    group.instance.id partition.assignment.strategy group.protocol group.remote.assignor metadata.max.age.ms
""".split()
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
# By the short words above, by our class names and by Java's.
_ASSIGNOR_OF = {
    word: name
    for short, name in _ASSIGNORS.items()
    for word in (short, name.lower(), name.replace("Partition", "").lower())
}

#: A query is a member of its group, or only commits its progress to it.
MEMBER, PROGRESS = GROUP_MODES = ("member", "progress")
#: The group's protocol by Java's names; the second is KIP-848's.
CLASSIC, CONSUMER = GROUP_PROTOCOLS = ("classic", "consumer")


@dataclass(frozen=True)
class Topics:
    """Which partitions are read: topics by name, chosen partitions, or topics by pattern."""

    names: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True)
class SourceOptions:
    """All options of one read, checked. ``kafka`` holds the settings as given; it is not in the repr (secrets)."""

    bootstrap: str
    topics: Topics
    starting: Where
    ending: Where
    group_id: str | None
    max_offsets: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    # These may hold a password.
    store: str | None = field(repr=False)
    claims: str | None = field(repr=False)
    #: By column, ``key`` or ``value``.
    formats: Mapping[str, ValueFormat]
    patience: float
    min_offsets: int | None = None
    max_delay: float = LONGEST_DELAY
    max_records: int | None = None
    group_prefix: str | None = None
    group_mode: str = MEMBER
    #: The user gave ``group.mode=member``, so several sources of one application may share partitions.
    shares: bool = False
    conflict: str = AUTO
    kafka: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Read the options of a ``spark.read`` or ``spark.readStream``; raises ConfigurationError."""
        own, kafka = own_and_kafka(options)
        _refuse_unknown(own, kafka)
        bootstrap = bootstrap_of(kafka)
        group = own.get("group.id") or kafka.get("group.id") or None
        topics = _topics(own, group)
        found = cls(
            bootstrap=bootstrap,
            topics=topics,
            starting=starting(own, streaming, group),
            ending=ending(own, streaming),
            group_id=group,
            max_offsets=number(own, "maxOffsetsPerTrigger", 1),
            min_partitions=number(own, "minPartitions", 1),
            fail_on_data_loss=flag(own, "failOnDataLoss", True),
            columns=_columns(own),
            store=own.get("store") or None,
            claims=own.get("claims") or None,
            formats=_formats(own, topics.names),
            min_offsets=number(own, "minOffsetsPerTrigger", 1),
            max_delay=seconds("maxTriggerDelay", own.get("maxtriggerdelay") or "15m"),
            max_records=number(own, "maxRecordsPerPartition", 1),
            group_prefix=own.get("groupidprefix") or None,
            group_mode=_word(own, "group.mode", GROUP_MODES),
            shares=own.get("group.mode", "").lower() == MEMBER,
            conflict=_word(own, "offsetConflict", CONFLICTS),
            patience=(number(own, "kafkaConsumer.pollTimeoutMs", 1) or 120_000) / 1000.0,
            kafka=kafka,
        )
        # A wrong setting raises here, where the query is written, and not in a task.
        found.settings(), found.limits(), found.assignor_names()
        if group is not None:
            found.membership()
        found._check_together(own, streaming)
        return found

    def _check_together(self, own: Mapping[str, str], streaming: bool) -> None:
        for name in ("store", "claims", "group.mode", "offsetConflict", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if own.get(name.lower()) and not streaming:
                raise ConfigurationError(f"the option {name} is for streams: a batch read neither claims nor commits")
        self._check_claims()
        if (self.min_offsets or 0) > (self.max_offsets or self.min_offsets or 0):
            raise ConfigurationError("minOffsetsPerTrigger must not be larger than maxOffsetsPerTrigger")
        if self.group_protocol == CONSUMER and self.assignor_chosen:
            raise ConfigurationError(
                "kafka.group.protocol=consumer and kafka.partition.assignment.strategy exclude each other: the broker "
                "assigns; kafka.group.remote.assignor (uniform, range) chooses how"
            )
        if own.get("group.mode") and self.group_id is None:
            raise ConfigurationError("the option group.mode needs the option group.id")
        if own.get("offsetconflict") and (not self.is_member or self.store or self.claims):
            raise ConfigurationError(
                "the option offsetConflict is for members of a group (group.id, group.mode=member) without claims: "
                "otherwise what the group has committed does not count"
            )

    def _check_claims(self) -> None:
        if self.claims is not None and self.store is not None:
            raise ConfigurationError(
                "store and claims exclude each other: the log of claims is elsewhere, or the group"
            )
        if self.claims is not None and not self.is_member:
            raise ConfigurationError(
                "the option claims needs group.id and group.mode=member, as the group's commits are the claims; "
                "without a group, store names a place for them"
            )
        place = self.claims or self.store
        if place is None:
            return
        from managedconsumer.spark.claims.places import log_at
        from managedconsumer.stores.objects import objects_at

        try:
            # Opens nothing, but knows what it needs.
            if self.store is not None:
                log_at(place)
            else:
                objects_at(place)
        except (ConfigurationError, MissingPackageError, ValueError) as error:
            raise ConfigurationError(f"claims cannot be kept at {without_secrets(place)!r}: {error}") from error

    @property
    def group_protocol(self) -> str:
        return _word(self.kafka, "group.protocol", GROUP_PROTOCOLS, "kafka.")

    @property
    def assignor_chosen(self) -> bool:
        """True if the user has said which assignors to offer."""
        return bool(self.kafka.get("partition.assignment.strategy"))

    def in_own_group(self, query: str) -> SourceOptions:
        """Return the options with ``groupIdPrefix`` applied: without ``group.id``, progress goes to an own group."""
        if self.group_prefix is None or self.group_id is not None:
            return self
        return replace(self, group_id=f"{self.group_prefix}-{query}", group_mode=PROGRESS)

    @property
    def is_member(self) -> bool:
        """True if the query takes part in its group."""
        return self.group_id is not None and self.group_mode == MEMBER

    def identity(self) -> tuple[tuple[str, str], ...]:
        """The options that must be equal for two reads to share connections."""
        return tuple(sorted(self.kafka.items()))

    def settings(self) -> ConnectionSettings:
        return ConnectionSettings(
            client_id=self.kafka.get("client.id", "managedconsumer-spark"),
            request_timeout_ms=_kafka_number(self.kafka, "request.timeout.ms", 1, 30_000),
            security=security_from(self.kafka),
        )

    def limits(self) -> RangeLimits:
        return RangeLimits(
            partition_max_bytes=_kafka_number(self.kafka, "max.partition.fetch.bytes", 1, 1024 * 1024),
            max_wait_ms=_kafka_number(self.kafka, "fetch.max.wait.ms", 0, 500),
            isolation_level=self.isolation_level,
            check_crcs=flag(self.kafka, "check.crcs", True, "kafka."),
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
        """The membership's settings; the rebalance timeout must exceed batch plus trigger."""
        instance = self.kafka.get("group.instance.id", "")
        session = _kafka_number(self.kafka, "session.timeout.ms", 1, 45_000)
        return MembershipConfig(
            group_id=self.group_id or "",
            session_timeout_ms=session,
            rebalance_timeout_ms=_kafka_number(self.kafka, "max.poll.interval.ms", 1, 300_000),
            heartbeat_interval_ms=_kafka_number(self.kafka, "heartbeat.interval.ms", 1, min(3000, session // 3)),
            group_instance_id=None if instance in ("", "none") else instance,
        )

    def assignor_names(self) -> list[str]:
        """Class names of the assignors to offer, best first."""
        names = []
        for word in filter(None, map(str.strip, self.kafka.get("partition.assignment.strategy", "").split(","))):
            name = _ASSIGNOR_OF.get(word.rsplit(".", 1)[-1].lower())
            if name is None:
                raise ConfigurationError(
                    f"kafka.partition.assignment.strategy must be one or more of {', '.join(_ASSIGNORS)}, not {word!r}"
                )
            names.append(name)
        return names or [_ASSIGNORS["cooperative-sticky"]]


def own_and_kafka(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the user's options by lower-case name, and those for Kafka without the prefix ``kafka.``."""
    given = of_user({name.lower(): str(value) for name, value in options.items()})
    kafka = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
    return {name: value for name, value in given.items() if not name.startswith("kafka.")}, kafka


def bootstrap_of(kafka: Mapping[str, str]) -> str:
    """Return ``bootstrap.servers``; raises ConfigurationError if it is missing or wrong."""
    bootstrap = kafka.get("bootstrap.servers", "")
    if not bootstrap:
        raise ConfigurationError(
            "the option kafka.bootstrap.servers is missing: "
            '.option("kafka.bootstrap.servers", "localhost:9092"), for example. (A table whose columns you have '
            "named yourself keeps no options: CREATE TABLE ... USING managedkafka OPTIONS (...) without columns "
            "does)"
        )
    parse_bootstrap(bootstrap)
    return bootstrap


def _formats(own: Mapping[str, str], topics: tuple[str, ...]) -> dict[str, ValueFormat]:
    if not any(name.startswith(("value.", "key.", "registry.")) for name in own):
        return {}
    from managedconsumer.runtime.net.schema_registry import Registry
    from managedconsumer.typed_columns import format_of

    found = {}
    for column in ("key", "value"):
        prefix = f"{column}."
        given: dict[str, Any] = {name.removeprefix(prefix): own[name] for name in own if name.startswith(prefix)}
        if given.get("registry") and (own.get("registry.token.provider") or own.get("registry.ca.location")):
            provider = own.get("registry.token.provider")
            auth = TokenProvider.of(provider) if provider else None
            given["registry"] = Registry(given["registry"], auth=auth, tls=own.get("registry.ca.location"))
        made = format_of(prefix, given, topics)
        if made is not None:
            found[column] = made
    return found


def _refuse_unknown(own: Mapping[str, str], kafka: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OWN}
    for name in own:
        if name in _NOT_HERE:
            raise ConfigurationError(f"the option {name} is not supported by this source: {_NOT_HERE[name]}")
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, [*known, *(f"kafka.{n}" for n in _KAFKA)], 1)
            hint = f"did you mean {known.get(near[0], near[0])}?" if near else f"known are {', '.join(_OWN)}, kafka.*"
            raise ConfigurationError(f"the option {name!r} is not known: {hint}")
    for name in kafka:
        if name in _KAFKA_REFUSED:
            raise ConfigurationError(f"kafka.{name} cannot be set: {_KAFKA_REFUSED[name]}")
        if name not in _KAFKA and not name.startswith(("security.", "sasl.", "ssl.")):
            log.info("kafka.%s has no meaning for this source and is ignored", name)


def _word(options: Mapping[str, str], name: str, allowed: tuple[str, ...], prefix: str = "") -> str:
    text = options.get(name.lower(), "").lower() or allowed[0]
    if text not in allowed:
        raise ConfigurationError(f"{prefix}{name} must be one of {', '.join(allowed)}, not {text!r}")
    return text


def _kafka_number(kafka: Mapping[str, str], name: str, minimum: int, default: int) -> int:
    found = number(kafka, name, minimum, "kafka.")
    return default if found is None else found


def _typed(options: Mapping[str, str]) -> bool:
    return bool(options.get("value.format") or options.get("key.format"))


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    headers = flag(options, "includeHeaders", False)
    if "columns" not in options:
        return (*(COLUMNS if headers else DEFAULT_COLUMNS), *([ERRORS] if _typed(options) else []))
    names = [name.strip() for name in options["columns"].split(",") if name.strip()]
    try:
        chosen = check_names(names)
    except ValueError as error:
        raise ConfigurationError(f"the option columns={options['columns']!r}: {error}") from None
    if ERRORS in chosen and not _typed(options):
        raise ConfigurationError(f"the column {ERRORS} needs the option value.format or key.format")
    return (*chosen, "headers") if headers and "headers" not in chosen else chosen


def _topics(options: Mapping[str, str], group: str | None) -> Topics:
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
    if group is not None and options.get("group.mode", MEMBER).lower() == MEMBER:
        raise ConfigurationError(
            "assign and group.id exclude each other, as a group assigns the partitions itself; group.mode=progress "
            "commits to the group and reads what assign names"
        )
    nested = json_object("assign", text, '{"page-views": [0, 1]}')
    try:
        chosen = tuple(TopicPartition(topic, int(number)) for topic, numbers in nested.items() for number in numbers)
    except (TypeError, ValueError):
        raise ConfigurationError(f'assign must name partitions as in {{"page-views": [0, 1]}}, not {text!r}') from None
    return Topics(partitions=chosen)
