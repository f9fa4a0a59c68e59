"""Questions about many groups at once: each coordinator is asked for all of its groups, all coordinators together."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, TypeVar

from managedconsumer import errors as err
from managedconsumer.admin import requests
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.connection_pool import ConnectionPool
from managedconsumer.runtime.cluster.coordinator_link import CONNECTION_ERRORS
from managedconsumer.runtime.waiting.parallel import Parallel
from managedconsumer.structs import BrokerInfo
from managedconsumer.wire.protocol import schemas

T = TypeVar("T")
Answers = dict[str, T | err.KafkaException]
#: Makes a request's body for some groups.
Body = Callable[[list[str]], Mapping[str, Any]]
#: Reads an answer: each group's value or error.
Read = Callable[[dict[str, Any], int, list[str]], Mapping[str, Any]]

#: How many groups one request names; the answers stay far below the limit for one frame.
_GROUPS = 100


class Asking:
    """Asks coordinators. Thread-safe; every call waits for at most ``patience`` seconds."""

    def __init__(self, cluster: Cluster, pool: ConnectionPool, patience: float) -> None:
        self._cluster, self._pool, self._patience = cluster, pool, patience

    def brokers(self, ask: Callable[[int], object]) -> None:
        """``ask(node)`` for every broker, side by side; when all are done, raises the first error.

        A broker that still loads its groups is asked again until the patience is over, as Java's Admin does.
        """
        handler = self._cluster.handler
        deadline = Deadline(handler.now(), self._patience)
        done: set[int] = set()
        errors: list[err.KafkaException] = []

        def persist(node: int) -> None:
            backoff = Backoff(0.05, 1.0, handler.random)
            while True:
                try:
                    ask(node)
                    done.add(node)
                    return
                except err.KafkaException as error:
                    left = deadline.remaining(handler.now()) or 0.0
                    if not (isinstance(error, err.ProtocolClientError) and error.retriable) or left <= 0:
                        errors.append(error)
                        return
                    handler.sleep(min(backoff.fail(handler.now()), left))

        parallel = Parallel(handler, "admin")
        nodes = sorted(self._cluster.refresh(()).brokers)
        for node in nodes:
            parallel.start(persist, node)
        parallel.wait(self._patience, lambda: False)
        if errors:
            raise errors[0]
        if silent := [node for node in nodes if node not in done]:
            raise err.RequestTimedOut(f"brokers {silent} have not answered within {self._patience:.0f} s")

    def groups(
        self, names: Iterable[str], api: schemas.Api, body: Body, read: Read, *, batched_from: int = 0, up_to: int = 99
    ) -> Answers[Any]:
        """Ask the groups' coordinators; a group that cannot be asked has its last error.

        ``batched_from``: the version of ``api`` from which one request may name several groups; ``up_to``: the highest
        that is used. Coordinators that move or load are asked again until the patience is over.
        """
        handler = self._cluster.handler
        deadline, backoff = Deadline(handler.now(), self._patience), Backoff(0.05, 1.0, handler.random)
        done: Answers[Any] = {}
        todo = set(names)
        while todo:
            found = self._once(todo, api, body, read, batched_from, up_to)
            done.update(found)
            todo = {name for name, answer in found.items() if _may_pass(answer)}
            left = deadline.remaining(handler.now()) or 0.0
            if not todo or left <= 0:
                break
            handler.sleep(min(backoff.fail(handler.now()), left))
        return done

    def _once(
        self, names: set[str], api: schemas.Api, body: Body, read: Read, batched_from: int, up_to: int
    ) -> Answers[Any]:
        answers: Answers[Any] = {}
        by_node: dict[int, list[str]] = {}
        for name, found in self._coordinators(names).items():
            if isinstance(found, BrokerInfo):
                by_node.setdefault(found.node_id, []).append(name)
            else:
                answers[name] = found

        def ask(node: int, mine: list[str]) -> None:
            try:
                answers.update(self._ask_node(node, mine, api, body, read, batched_from, up_to))
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                answers.update(dict.fromkeys(mine, error))

        parallel = Parallel(self._cluster.handler, "admin")
        for node, mine in by_node.items():
            parallel.start(ask, node, mine)
        parallel.wait(self._patience, lambda: False)
        silent = err.RequestTimedOut(f"the coordinator has not answered within {self._patience:.0f} s")
        return {name: answers.get(name, silent) for name in names}

    def _ask_node(
        self, node: int, names: list[str], api: schemas.Api, body: Body, read: Read, batched_from: int, up_to: int
    ) -> Answers[Any]:
        found: Answers[Any] = {}
        connection = self._pool.borrow(node)
        try:
            version = min(connection.version(api), up_to)
            for some in requests.slices(names, _GROUPS if version >= batched_from else 1):
                answer = connection.receive(connection.send(api, body(some), version))
                found.update(read(answer, node, some))
        except CONNECTION_ERRORS:
            connection.close()
            raise
        finally:
            self._pool.give_back(connection)
        return found

    def _coordinators(self, names: set[str]) -> dict[str, BrokerInfo | err.KafkaException]:
        found: dict[str, BrokerInfo | err.KafkaException] = {}
        for some in requests.slices(names, _GROUPS):
            left = some
            while left:  # an old broker finds one at a time
                answer = self._cluster.request(schemas.FIND_COORDINATOR, requests.find_body(left))
                found.update(requests.read_find(answer, left))
                left = [name for name in left if name not in found]
        if any(isinstance(b, BrokerInfo) and b.node_id not in self._cluster.snapshot.brokers for b in found.values()):
            self._cluster.refresh(())
        return found


def _may_pass(answer: object) -> bool:
    if isinstance(answer, err.FATAL_LOCAL_ERRORS):
        return False
    return isinstance(answer, CONNECTION_ERRORS) or (isinstance(answer, err.ProtocolClientError) and answer.retriable)
