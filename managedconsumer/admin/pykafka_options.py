"""Find the arguments of pykafka's clients and consumers in a program, and say what they mean here. Pure."""

from __future__ import annotations

import ast
from typing import Iterator, Mapping, NamedTuple

from managedconsumer.admin.values import Level
from managedconsumer.config import ConsumerOptions

#: A remark without its place.
Said = tuple[Level, str]

#: pykafka's first ones.
_FETCHING = ConsumerOptions._fields[:12]
_ZOOKEEPER = ("zookeeper_connection_timeout_ms", "zookeeper_connect", "zookeeper_hosts", "zookeeper")
#: pykafka's arguments in their order, as callers may leave out the names.
SIGNATURES = {
    "KafkaClient": (
        *("hosts", "zookeeper_hosts", "socket_timeout_ms", "offsets_channel_socket_timeout_ms", "use_greenlets"),
        *("exclude_internal_topics", "source_address", "ssl_config", "broker_version"),
    ),
    "get_simple_consumer": ("consumer_group", "use_rdkafka"),
    "get_balanced_consumer": ("consumer_group", "managed"),
    "SimpleConsumer": (
        *("topic", "cluster", "consumer_group", "partitions", *_FETCHING, "auto_start", "reset_offset_on_start"),
        *("compacted_topic", "generation_id", "consumer_id", "deserializer", "reset_offset_on_fetch"),
    ),
    "BalancedConsumer": (
        *("topic", "cluster", "consumer_group", *_FETCHING, "rebalance_max_retries", "rebalance_backoff_ms"),
        *(*_ZOOKEEPER, "auto_start", "reset_offset_on_start", "post_rebalance_callback", "use_rdkafka"),
        *("compacted_topic", "membership_protocol", "deserializer", "reset_offset_on_fetch"),
    ),
    "ManagedBalancedConsumer": (
        *("topic", "cluster", "consumer_group", *_FETCHING, "rebalance_max_retries", "rebalance_backoff_ms"),
        *("auto_start", "reset_offset_on_start", "post_rebalance_callback", "use_rdkafka", "compacted_topic"),
        *("heartbeat_interval_ms", "membership_protocol", "deserializer", "reset_offset_on_fetch"),
    ),
}
CONSUMERS = tuple(name for name in SIGNATURES if name != "KafkaClient")
_SIMPLE = ("get_simple_consumer", "SimpleConsumer")
_DIRECT = ("SimpleConsumer", "BalancedConsumer", "ManagedBalancedConsumer")
_TRUE_OR_FALSE = sorted(
    ["auto_start", "exclude_internal_topics", "managed", "use_greenlets"]
    + [name for name in ConsumerOptions._fields if isinstance(getattr(ConsumerOptions, name), bool)]
)
#: Options that mean something else here for every value.
_OPTIONS = {
    "deserializer": "deserializer: a message for which it raises stays where it is, and on_error decides (pykafka "
    'skips and commits it): on_error="skip" passes it, with a line in the log',
    "fetch_error_backoff_ms": "fetch_error_backoff_ms has no effect: pauses grow from 50 ms to 0.4 s. Remove it",
    "post_rebalance_callback": "post_rebalance_callback: the next consume() raises its exception; an offset that "
    "it returns for a partition that is not ours is ignored",
}


#: Named arguments that have no effect here for any value: ``doctor --fix`` removes them.
_IDLE = {"KafkaClient": ("broker_version",)} | dict.fromkeys(CONSUMERS, ("fetch_error_backoff_ms", *_ZOOKEEPER))


class Given(NamedTuple):
    """The arguments of a call. ``whole`` is False where ``*args`` or ``**options`` may hide others."""

    values: Mapping[str, ast.expr]
    whole: bool


def given(call: ast.Call, name: str) -> Given:
    found: dict[str, ast.expr] = {}
    for known, value in zip(SIGNATURES[name], call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        found[known] = value
    found.update((each.arg, each.value) for each in call.keywords if each.arg is not None)
    starred = any(isinstance(value, ast.Starred) for value in call.args)
    return Given(found, not starred and all(each.arg is not None for each in call.keywords))


def without_effect(call: ast.Call, name: str) -> set[str]:
    """The named arguments of ``call``, which calls ``name``, that can be removed."""
    idle = set(_IDLE.get(name, ()))
    if name == "KafkaClient" and "hosts" in given(call, name).values:
        idle.add("zookeeper_hosts")
    # What computes a value may do something besides.
    return {each.arg for each in call.keywords if each.arg in idle and not any(map(_acts, ast.walk(each.value)))}


def _acts(node: ast.AST) -> bool:
    return isinstance(node, ast.Call | ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom)


def about_client(call: ast.Call) -> Iterator[Said]:
    """Say what the arguments of ``KafkaClient(...)`` mean here."""
    values = given(call, "KafkaClient").values
    yield from _texts(values)
    if "zookeeper_hosts" in values and "hosts" not in values:
        yield "wrong", "zookeeper_hosts without hosts: give the address of a broker (hosts=)"
    if "ssl_config" in values:
        yield "note", "ssl_config: the host's name is checked (pykafka never checks it)"
    if "broker_version" in values:
        yield "note", "broker_version has no effect: versions are agreed on with each broker. Remove it"


def about_consumer(call: ast.Call, name: str, *, commits: bool) -> Iterator[Said]:
    """Say what the arguments of the call of ``name`` mean here. ``commits``: its program calls ``commit_offsets()``."""
    found = given(call, name)
    values = found.values
    yield from _texts(values)
    yield from _group(values, name)
    yield from _committing(found, name, commits)
    if name in _DIRECT:
        yield "note", f"{name}(...) is not reached by patch_pykafka(): import it from managedconsumer"
    yield from _zookeeper(values, name)
    for option, text in _OPTIONS.items():
        if option in values and not _is(values[option], None):
            yield "note", text
    yield from _retries(values, name)
    if "use_rdkafka" in values and not _is(values["use_rdkafka"], False):
        text = (
            "use_rdkafka: only fetching is librdkafka's (pip install 'managedconsumer[rdkafka]'; ImportError without "
        )
        yield "note", text + "it). The built-in fetcher is faster: remove it"
    if name in _SIMPLE:
        yield from _simple(found)


def _texts(values: Mapping[str, ast.expr]) -> Iterator[Said]:
    for option in _TRUE_OR_FALSE:
        value = values.get(option)
        if isinstance(value, ast.Constant) and isinstance(value.value, str | bytes):
            text = f"{option}={value.value!r} raises TypeError (pykafka takes each text but the empty one as true)"
            yield "wrong", f"{text}: write True or False"


def _group(values: Mapping[str, ast.expr], name: str) -> Iterator[Said]:
    value = values.get("consumer_group")
    if not isinstance(value, ast.Constant):
        return
    if value.value in ("", b"") or (value.value is None and name not in _SIMPLE):
        if name in _SIMPLE:
            yield "wrong", "consumer_group is empty: None means no group"
        else:
            yield "wrong", "consumer_group is empty: a balanced consumer needs a name"
    elif not isinstance(value.value, str | bytes | None):
        yield "wrong", f"consumer_group={value.value!r} raises TypeError (pykafka makes a text of it): give a text"


def _committing(found: Given, name: str, commits: bool) -> Iterator[Said]:
    enabled, group = found.values.get("auto_commit_enable"), found.values.get("consumer_group")
    if _is(enabled, True):
        yield "note", "auto_commit_enable commits finished messages only (pykafka loses the one in flight in a crash)"
    has_group = name not in _SIMPLE or (group is not None and not _is(group, None))
    if has_group and found.whole and not commits and (enabled is None or _is(enabled, False)):
        text = "auto_commit_enable is off, and nothing here calls commit_offsets(): nothing is committed (pykafka "
        yield "note", text + "commits at its start, at rebalances and at resets). Do one of the two"


def _zookeeper(values: Mapping[str, ast.expr], name: str) -> Iterator[Said]:
    managed = values.get("managed")
    if name == "BalancedConsumer" or (name == "get_balanced_consumer" and not _is(managed, True)):
        if name == "BalancedConsumer":
            what = "BalancedConsumer(...)"
        elif managed is None or isinstance(managed, ast.Constant):
            what = "get_balanced_consumer() without managed=True"
        else:
            what = f"get_balanced_consumer(managed={ast.unparse(managed)}), where that is false,"
        text = (
            f"{what} uses Kafka's group protocol here, not ZooKeeper: replace all members of such a group at the same"
        )
        yield "note", text + " time"
    for option in _ZOOKEEPER:
        if option in values:
            yield "note", f"{option} has no effect: Kafka 4 has no ZooKeeper. Remove it"


def _retries(values: Mapping[str, ast.expr], name: str) -> Iterator[Said]:
    """Say what the options with a number of retries bound here, and for how long."""
    if name not in _SIMPLE and ("rebalance_max_retries" in values or "rebalance_backoff_ms" in values):
        retries = _number(values.get("rebalance_max_retries"), 5)
        pause = _number(values.get("rebalance_backoff_ms"), 2000)
        text = "rebalance_max_retries and rebalance_backoff_ms bound what start() waits for"
        if retries is not None and pause is not None:
            text += f" (here {retries * max(0, retries - 1) // 2 * pause / 1000:g} s)"
        yield "note", text + "; a consumer that runs goes on for ever (pykafka ends it): watch health()"
    if "offsets_commit_max_retries" in values or "offsets_channel_backoff_ms" in values:
        retries = _number(values.get("offsets_commit_max_retries"), 5)
        pause = _number(values.get("offsets_channel_backoff_ms"), 1000)
        text = "offsets_commit_max_retries and offsets_channel_backoff_ms bound how long commit_offsets() tries"
        if retries is not None and pause is not None:
            text += f" (here {retries * (retries + 1) * pause / 1000:g} s)" if retries else " (here: one attempt)"
        yield "note", text + "; then it raises (pykafka returns None)"


def _simple(found: Given) -> Iterator[Said]:
    group, reset = found.values.get("consumer_group"), found.values.get("auto_offset_reset")
    if found.whole and (group is None or _is(group, None)) and reset is not None and not _is_earliest(reset):
        text = "auto_offset_reset counts without a consumer_group, too (pykafka begins at offset 0 then): remove it to "
        yield "note", text + "begin there"
    if _is(found.values.get("reset_offset_on_fetch"), False):
        text = "reset_offset_on_fetch=False: the consumer begins at the committed offset all the same (pykafka: at "
        yield "note", text + "auto_offset_reset): reset_offset_on_start=True begins there"


def _is(value: ast.expr | None, wanted: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted


def _number(value: ast.expr | None, default: int) -> int | None:
    """The number in the source; None: the program computes it."""
    if value is None:
        return default
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, int) else None


def _is_earliest(value: ast.expr) -> bool:
    return _number(value, 0) == -2 or (isinstance(value, ast.Attribute) and value.attr == "EARLIEST")
