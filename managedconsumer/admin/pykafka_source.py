"""Find the calls of a pykafka program that mean something else here, in its source, which is not run. Pure."""

from __future__ import annotations

import ast
from typing import Iterator, Mapping, NamedTuple

from managedconsumer.admin.pykafka_options import CONSUMERS, about_client, about_consumer
from managedconsumer.admin.values import Level


class Remark(NamedTuple):
    """A place in a program. ``level`` is "wrong" where the program has to change, "note" where it may have to."""

    path: str
    line: int
    level: Level
    text: str


_SUBMODULES = (
    "balancedconsumer broker client cluster common connection managedbalancedconsumer membershipprotocol partition "
    "simpleconsumer topic"
).split()
#: Modules of pykafka, and the modules here with their names. No other module of pykafka exists here.
MODULES = {
    **dict.fromkeys(("pykafka", *(f"pykafka.{name}" for name in _SUBMODULES)), "managedconsumer"),
    "pykafka.exceptions": "managedconsumer.errors",
}
#: The names of pykafka's that ``managedconsumer`` itself has.
NAMES = (
    "BalancedConsumer Broker Cluster CompressionType KafkaClient ManagedBalancedConsumer OffsetType Partition "
    "RangeProtocol RoundRobinProtocol SimpleConsumer SslConfig Topic"
).split()
#: No other package has methods of these names: a file that calls them gets its topics from another file.
_METHODS = ("get_simple_consumer", "get_balanced_consumer")
_PRODUCERS = ("get_producer", "get_sync_producer")
_GONE = {
    "fetch": "fetch() does not exist: the loop inside is not pykafka's",
    "partition_cycle": "partition_cycle does not exist: partitions take turns by themselves",
    "_rebalance": "_rebalance() does not exist; _update_member_assignment() does",
    "_setup_internal_consumer": "_setup_internal_consumer() does not exist: one lives all the time",
}
_CALLS = {
    "reset_offsets": "reset_offsets() moves positions and commits nothing (pykafka commits): commit_offsets() after "
    "it if that is wanted",
    "commit_offsets": "commit_offsets() raises when the offsets were not committed (pykafka returns None)",
}


def look_at(source: str, path: str, *, commits: bool = False, moved: bool = False) -> list[Remark]:
    """The remarks on one file, by line; none for a file without pykafka, one for a file that is no Python 3.

    ``commits``: another file of the program calls ``commit_offsets()``. ``moved``: what the file imports from pykafka
    has been rewritten, so it is a pykafka program even without an import of pykafka.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return [Remark(path, line, "wrong", f"this is no Python 3: {error}")] if "pykafka" in source else []
    found = list(_imports(tree, path))
    if found or moved or _gets_topics(tree):
        found += _calls(tree, path, commits=commits)
    return sorted(set(found))


def concerns(tree: ast.AST) -> bool:
    """True for a pykafka program: it imports pykafka, or makes consumers of topics from another file."""
    return any(True for _ in _imports(tree, "")) or _gets_topics(tree)


def produces(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _PRODUCERS for node in ast.walk(tree))


def _imports(tree: ast.AST, path: str) -> Iterator[Remark]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_pykafka(node):
            for name in node.names:
                yield _import(node.module or "", name.name, path, node.lineno)
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "pykafka":
                    yield _import(name.name, None, path, node.lineno)


def _gets_topics(tree: ast.AST) -> bool:
    """True for a file that makes consumers of topics from another file, and does not import managedconsumer."""
    nodes = list(ast.walk(tree))
    imported = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    if any(name.split(".")[0] == "managedconsumer" for name in imported):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr in _METHODS for node in nodes)


def _is_pykafka(node: ast.ImportFrom) -> bool:
    return not node.level and (node.module or "").split(".")[0] == "pykafka"


def home_of(module: str, name: str | None) -> str | None:
    """The module here that has ``name`` of pykafka's ``module`` (None: the module itself); None where none has it."""
    home = MODULES.get(module)
    return None if home == "managedconsumer" and name not in (None, "*", *NAMES) else home


def _import(module: str, name: str | None, path: str, line: int) -> Remark:
    home = home_of(module, name)
    written = f"from {module} import {name}" if name else f"import {module}"
    if module == "pykafka" and f"pykafka.{name}" in MODULES:  # a module of the package
        home = MODULES[f"pykafka.{name}"]
        return Remark(path, line, "note", f"{written}: import {home}")
    if home is None:
        return Remark(path, line, "wrong", f"{written}: there is none here (no producer, no raw requests, no tools)")
    if name is None:
        return Remark(path, line, "note", f"{written}: import {home}")
    return Remark(path, line, "note", f"{written}: from {home} import {name}")


def _calls(tree: ast.AST, path: str, *, commits: bool) -> Iterator[Remark]:
    aliases, nodes = renamed(tree), list(ast.walk(tree))
    calls = [(each, called(each, aliases)) for each in nodes if isinstance(each, ast.Call)]
    commits = commits or any(name == "commit_offsets" for _, name in calls)
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in _GONE:
            yield Remark(path, node.lineno, "wrong", _GONE[node.attr])
    for call, name in calls:
        if name in _PRODUCERS:
            text = f"{name}(): there is no producer here; keep pykafka's, or take another"
            yield Remark(path, call.lineno, "wrong", text)
        if name in _CALLS:
            yield Remark(path, call.lineno, "note", _CALLS[name])
        if name in CONSUMERS:
            for level, text in about_consumer(call, name, commits=commits):
                yield Remark(path, call.lineno, level, text)
        if name == "KafkaClient":
            for level, text in about_client(call):
                yield Remark(path, call.lineno, level, text)


def renamed(tree: ast.AST) -> Mapping[str, str]:
    """pykafka's names by the names that the file gives them (``import ... as``)."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_pykafka(node):
            found.update({each.asname: each.name for each in node.names if each.asname})
    return found


def called(call: ast.Call, aliases: Mapping[str, str]) -> str:
    """The last name of what ``call`` calls, as pykafka has it."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    name = getattr(call.func, "id", "")
    return aliases.get(name, name)
