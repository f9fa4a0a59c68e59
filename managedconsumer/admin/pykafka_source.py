"""Which calls of a pykafka program mean something else here: found in its source, which is not run. Pure."""

from __future__ import annotations

import ast
from typing import Iterator, NamedTuple

from managedconsumer.admin.findings import Level


class Remark(NamedTuple):
    """A place in a program. ``level`` is "wrong" where the program has to change, "note" where it may have to."""

    path: str
    line: int
    level: Level
    text: str


#: Modules of pykafka: where the names are here, None: not at all.
_MODULES = {
    "pykafka": "managedconsumer",
    "pykafka.common": "managedconsumer",
    "pykafka.exceptions": "managedconsumer.errors",
    "pykafka.simpleconsumer": "managedconsumer",
    "pykafka.balancedconsumer": "managedconsumer",
    "pykafka.managedbalancedconsumer": "managedconsumer",
    "pykafka.membershipprotocol": "managedconsumer",
    "pykafka.producer": None,
    "pykafka.cli": None,
    "pykafka.rdkafka": None,
    "pykafka.protocol": None,
}
_PRODUCERS = ("get_producer", "get_sync_producer")
_GONE = {
    "fetch": "fetch() does not exist: the loop inside is not pykafka's",
    "partition_cycle": "partition_cycle does not exist: partitions take turns by themselves",
    "_rebalance": "_rebalance() does not exist; _update_member_assignment() does",
    "_setup_internal_consumer": "_setup_internal_consumer() does not exist: one lives all the time",
}
_CONSUMERS = ("get_balanced_consumer", "get_simple_consumer", "BalancedConsumer", "SimpleConsumer")
_CALLS = {
    "reset_offsets": "reset_offsets() moves positions and commits nothing (pykafka commits): commit_offsets() after "
    "it if that is wanted",
    "commit_offsets": "commit_offsets() raises when the offsets were not committed (pykafka returns None)",
}


def look_at(source: str, path: str) -> list[Remark]:
    """The remarks on one file, by line; none for a file without pykafka. What is no Python 3 is one remark."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return [Remark(path, line, "wrong", f"this is no Python 3: {error}")] if "pykafka" in source else []
    found = list(_imports(tree, path))
    if found:
        found += _calls(tree, path)
    return sorted(set(found))


def _imports(tree: ast.AST, path: str) -> Iterator[Remark]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "pykafka"
            and not node.level
        ):
            for name in node.names:
                yield _import(node.module, name.name, path, node.lineno)
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "pykafka":
                    yield _import(name.name, None, path, node.lineno)


def _import(module: str, name: str | None, path: str, line: int) -> Remark:
    home = _MODULES.get(module)
    written = f"from {module} import {name}" if name else f"import {module}"
    if home is None or name in ("Producer", "RdKafkaProducer"):
        return Remark(path, line, "wrong", f"{written}: there is none here (no producer, no raw requests, no tools)")
    if name is None:
        return Remark(path, line, "note", f"{written}: import {home}")
    return Remark(path, line, "note", f"{written}: from {home} import {name}")


def _calls(tree: ast.AST, path: str) -> Iterator[Remark]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _GONE:
            yield Remark(path, node.lineno, "wrong", _GONE[node.attr])
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _PRODUCERS:
            yield Remark(
                path, node.lineno, "wrong", f"{name}(): there is no producer here; keep pykafka's, or take another"
            )
        if name in _CALLS:
            yield Remark(path, node.lineno, "note", _CALLS[name])
        if name in _CONSUMERS:
            yield from _options(node, path)
        if name == "KafkaClient":
            yield from _client(node, path)


def _options(call: ast.Call, path: str) -> Iterator[Remark]:
    given = {each.arg: each.value for each in call.keywords if each.arg is not None}
    group = given.get("consumer_group")
    if isinstance(group, ast.Constant) and group.value in (None, "", b"") and "get_simple" not in ast.dump(call.func):
        yield Remark(path, call.lineno, "wrong", "consumer_group is empty: a balanced consumer needs a name")
    if _is_true(given.get("auto_commit_enable")):
        text = "auto_commit_enable commits finished messages only, not the one in hand (pykafka loses that in a crash)"
        yield Remark(path, call.lineno, "note", text)
    managed = given.get("managed")
    if "get_balanced" in ast.dump(call.func) and not _is_true(managed):
        text = (
            "get_balanced_consumer() without managed=True uses Kafka's group protocol here, not ZooKeeper: replace all "
        )
        yield Remark(path, call.lineno, "note", text + "members of such a group at the same time")
    if "zookeeper_connect" in given:
        yield Remark(path, call.lineno, "note", "zookeeper_connect has no effect: Kafka 4 has no ZooKeeper")
    if "post_rebalance_callback" in given:
        text = "post_rebalance_callback: an exception in it comes out of the next consume(); what it returns "
        yield Remark(path, call.lineno, "note", text + "for partitions that are not ours is ignored")


def _client(call: ast.Call, path: str) -> Iterator[Remark]:
    given = {each.arg for each in call.keywords}
    if "zookeeper_hosts" in given and "hosts" not in given:
        yield Remark(path, call.lineno, "wrong", "zookeeper_hosts without hosts: give the address of a broker (hosts=)")
    if "ssl_config" in given:
        yield Remark(path, call.lineno, "note", "ssl_config: the host's name is checked (pykafka never checks it)")


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
