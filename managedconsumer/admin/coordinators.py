"""Requests about many groups: one to each coordinator for all of its groups, to all coordinators in parallel."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from managedconsumer import errors as err
from managedconsumer.admin import requests
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.coordinator_link import CONNECTION_ERRORS
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.parallel import Parallel
from managedconsumer.structs import BrokerInfo
from managedconsumer.wire.protocol import schemas

T = TypeVar("T")
K = TypeVar("K", int, str)
Answers = dict[K, T | err.KafkaException]
#: Makes a request's body for some groups.
Body = Callable[[list[str]], Mapping[str, Any]]
#: Reads an answer: each group's value or error.
Read = Callable[[dict[str, Any], int, list[str]], Mapping[str, Any]]

#: How many groups one request names; the answers stay far below the limit for one frame.
_GROUPS = 100


class Coordinators:
    """Asks brokers and coordinators. Thread-safe; every call waits for at most ``patience`` seconds."""

    def __init__(self, cluster: Cluster, patience: float) -> None:
        self._cluster, self._patience = cluster, patience

    def brokers(self, ask: Callable[[Connection, int], list[T]]) -> list[T]:
        """``ask(connection, node)`` for every broker, again while it loads its groups; raises the first error."""

        def ask_node(node: int, _: list[int]) -> Answers[int, list[T]]:
            with self._connection(node) as connection:
                return {node: ask(connection, node)}

        def once(nodes: set[int]) -> Answers[int, list[T]]:
            return self._in_parallel({node: [node] for node in nodes}, ask_node)

        found: list[T] = []
        for answer in self._repeated(self._cluster.refresh(()).brokers, once, _is_retriable).values():
            if isinstance(answer, err.KafkaException):
                raise answer
            found += answer
        return found

    def groups(
        self, names: Iterable[str], api: schemas.Api, body: Body, read: Read, *, batched_from: int = 0, up_to: int = 99
    ) -> Answers[str, Any]:
        """Ask the groups' coordinators; the answer of a group that cannot be asked is its last error.

        ``batched_from``: the version of ``api`` from which one request may name several groups; ``up_to``: the highest
        version to use. Coordinators that move or load are asked again until the patience is over.
        """

        def ask(node: int, mine: list[str]) -> Answers[str, Any]:
            found: Answers[str, Any] = {}
            with self._connection(node) as connection:
                version = min(connection.version(api), up_to)
                for some in requests.slices(mine, _GROUPS if version >= batched_from else 1):
                    answer = connection.receive(connection.send(api, body(some), version))
                    found.update(read(answer, node, some))
            return found

        def once(some: set[str]) -> Answers[str, Any]:
            by_node: dict[int, list[str]] = {}
            coordinators = self._find(some)
            for name, found in coordinators.items():
                if isinstance(found, BrokerInfo):
                    by_node.setdefault(found.node_id, []).append(name)
            return {**coordinators, **self._in_parallel(by_node, ask)}

        return self._repeated(names, once, lambda error: isinstance(error, CONNECTION_ERRORS) or _is_retriable(error))

    def _repeated(
        self, keys: Iterable[K], once: Callable[[set[K]], Answers[K, Any]], passes: Callable[[object], bool]
    ) -> Answers[K, Any]:
        """Call ``once``, and again for the keys whose error ``passes``, until the patience is over."""
        handler = self._cluster.handler
        deadline, backoff = Deadline(handler.now(), self._patience), Backoff(0.05, 1.0, handler.random)
        done: Answers[K, Any] = {}
        todo = set(keys)
        while todo:
            found = once(todo)
            done.update(found)
            todo = {key for key, answer in found.items() if passes(answer)}
            left = deadline.remaining(handler.now()) or 0.0
            if not todo or left <= 0:
                break
            handler.sleep(min(backoff.fail(handler.now()), left))
        return done

    def _in_parallel(
        self, by_node: Mapping[int, list[K]], ask: Callable[[int, list[K]], Answers[K, Any]]
    ) -> Answers[K, Any]:
        answers: Answers[K, Any] = {}

        def work(node: int, mine: list[K]) -> None:
            try:
                answers.update(ask(node, mine))
            except err.UnsupportedBrokerError as error:  # the caller knows whether this request is needed
                answers.update(dict.fromkeys(mine, error))
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                answers.update(dict.fromkeys(mine, error))

        parallel = Parallel(self._cluster.handler, "admin")
        for node, mine in by_node.items():
            parallel.start(work, node, mine)
        parallel.wait(self._patience, lambda: False)
        text = f"has not answered within {self._patience:.0f} s"
        silent = {key: err.RequestTimedOut(f"broker {node} {text}") for node, mine in by_node.items() for key in mine}
        return {**silent, **answers}

    @contextmanager
    def _connection(self, node: int) -> Iterator[Connection]:
        connection = self._cluster.borrow(node)
        try:
            yield connection
        except CONNECTION_ERRORS:
            connection.close()
            raise
        finally:
            self._cluster.give_back(connection)

    def _find(self, names: set[str]) -> dict[str, BrokerInfo | err.KafkaException]:
        found: dict[str, BrokerInfo | err.KafkaException] = {}
        for some in requests.slices(names, _GROUPS):
            left = some
            while left:  # from version 4 on a broker finds all of them, before that the first one
                body = {"key": left[0], "key_type": 0, "coordinator_keys": left}
                answer = self._cluster.request(schemas.FIND_COORDINATOR, body)
                found.update(requests.read_find(answer, left))
                left = [name for name in left if name not in found]
        if any(isinstance(b, BrokerInfo) and b.node_id not in self._cluster.snapshot.brokers for b in found.values()):
            self._cluster.refresh(())
        return found


def _is_retriable(error: object) -> bool:
    return (
        isinstance(error, err.ProtocolClientError) and error.retriable and not isinstance(error, err.FATAL_LOCAL_ERRORS)
    )
