"""The network of a simulation: it delays, loses and breaks; and what the core sees of it."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.overdue import NEVER, overdue_after
from managedconsumer.wire.protocol import schemas
from tests.simulation.brokers import Brokers
from tests.simulation.handler import VirtualHandler
from tests.simulation.kernel import Kernel, Process, Task

_DEFAULT_TIMEOUT = 30.0


class Fault:
    """The fault of one request: see :class:`Network`."""

    __slots__ = ("code", "ending", "kind", "seconds")

    def __init__(self, kind: str = "", code: int = 0, seconds: float = 0.0, ending: bool = False) -> None:
        #: "" none, "code" refused, "lost request", "lost answer" (silence), "reset before", "reset after", "late".
        self.kind = kind
        self.code = code
        self.seconds = seconds
        #: Whether the consumer may end by it.
        self.ending = ending


NO_FAULT = Fault()


class Network:
    """Carries requests and answers between processes and brokers; what goes wrong is decided by ``choose``."""

    def __init__(self, kernel: Kernel, brokers: Brokers) -> None:
        self.kernel = kernel
        self.brokers = brokers
        self.choose: Callable[[Process, schemas.Api], Fault] = lambda _process, _api: NO_FAULT
        self.note: Callable[[Process, str], None] = lambda _process, _text: None
        #: Told of every request that a worker makes.
        self.on_request: Callable[[Call], None] = lambda _call: None
        self.latency = 0.002
        self.metadata_max_age_ms = 4000
        self.connections: list[SimulatedConnection] = []

    def forget(self) -> None:
        """The simulation is over: lead nowhere any more."""
        self.connections.clear()
        self.brokers.forget()
        del self.choose, self.note, self.on_request

    def delay(self) -> float:
        """One way through the network."""
        return self.latency * (0.5 + self.kernel.random.random())

    def send(self, connection: SimulatedConnection, call: Call) -> None:
        self.on_request(call)
        if connection.silent:
            return
        fault = self.choose(connection.process, call.api)
        if fault.kind:
            text = f"code {fault.code}" if fault.kind == "code" else fault.kind
            self.note(connection.process, f"fault: {call.api.name}: {text}")
        if fault.kind == "reset before":
            self.kernel.after(self.delay(), connection.close)
        elif fault.kind != "lost request":
            self.kernel.after(self.delay(), self._arrive, connection, call, fault)

    def _arrive(self, connection: SimulatedConnection, call: Call, fault: Fault) -> None:
        node = connection.node
        if node in self.brokers.down:
            return
        if fault.kind == "code":
            self.brokers.pretended(call.api, fault.code)
            self._answer(connection, call, fault, self.brokers.refusal(call.api, call.body, fault.code))
        else:
            self.brokers.handle(node, call.api, call.body, lambda body: self._answer(connection, call, fault, body))

    def _answer(self, connection: SimulatedConnection, call: Call, fault: Fault, body: dict[str, Any]) -> None:
        if fault.kind == "reset after":
            self.kernel.after(self.delay(), connection.close)
        elif fault.kind != "lost answer":
            self.kernel.after(self.delay() + fault.seconds, connection.deliver, call, body)

    def node_down(self, node: int) -> None:
        """A broker dies: its connections break, its duties go to others."""
        self.brokers.down.add(node)
        for connection in [c for c in self.connections if c.node == node]:
            connection.close()
        alive = [n for n in self.brokers.nodes if n not in self.brokers.down]
        if alive:
            for log in self.brokers.logs.values():
                if log.leader == node:
                    log.leader = self.kernel.random.choice(alive)
            if self.brokers.coordinator == node:
                self.brokers.move_coordinator(0.0)
        self.brokers.group.down = not alive

    def node_up(self, node: int) -> None:
        """It is back; if it was the only one, it coordinates the group again."""
        self.brokers.down.discard(node)
        if self.brokers.group.down:
            self.brokers.group.down = False
            self.brokers.coordinate(node)


class Call:
    __slots__ = ("answer", "api", "body", "broken", "number", "overdue_at", "sent_at", "task", "waiting")

    def __init__(self, api: schemas.Api, body: Mapping[str, Any], task: Task, number: int) -> None:
        self.api = api
        self.body = body
        self.task = task
        self.number = number
        self.sent_at = task.process.kernel.now
        self.overdue_at = NEVER
        #: The task that waits for the answer.
        self.waiting: Task | None = None
        self.answer: dict[str, Any] | None = None
        self.broken = False


_RANGES = {
    api.key: (api.min_version, api.max_version)
    for api in schemas.APIS.values()
    if api not in (schemas.GET_TELEMETRY_SUBSCRIPTIONS, schemas.PUSH_TELEMETRY)  # there is no plugin for them
}


class SimulatedConnection:
    """A :class:`~managedconsumer.runtime.net.connection.Connection` over the simulated network."""

    broker_ranges = _RANGES
    settings = ConnectionSettings()
    throttled_until = 0.0

    def __init__(self, network: Network, process: Process, node: int) -> None:
        self.network, self.process, self.node = network, process, node
        self.node_id: int | None = node
        self.host, self.port = f"node{node}", 9092
        self.address = f"{self.host}:{self.port}"
        self.connected = True
        self.heard_at = process.kernel.now
        #: Nothing comes through any more, and neither side has been told.
        self.silent = False
        self.on_silence: Callable[[str, float], object] = lambda _address, _since: None
        self._call: Call | None = None
        self._calls = 0
        self._slowest: float | None = None

    def version(self, api: schemas.Api) -> int:
        return api.max_version

    def request(
        self, api: schemas.Api, body: Mapping[str, Any], timeout_ms: float | None = None, version: int | None = None
    ) -> dict[str, Any]:
        return self.receive(self.send(api, body, version), timeout_ms)

    def send(self, api: schemas.Api, body: Mapping[str, Any], version: int | None = None) -> int:
        del version
        task = self.process.kernel.current
        if not self.connected or task is None:
            raise err.SocketDisconnectedError(f"{self.address}: the connection is closed")
        self._calls += 1
        self._call = Call(api, body, task, self._calls)
        self._call.overdue_at = self._call.sent_at + overdue_after(api, body, self._slowest)
        self.network.send(self, self._call)
        return self._calls

    def receive(self, request: int, timeout_ms: float | None = None) -> dict[str, Any]:
        call, task = self._under_way(request), self.process.kernel.current
        if call.answer is None and not call.broken and task is not None:  # it may have come meanwhile
            call.waiting = task
            longest = _DEFAULT_TIMEOUT if timeout_ms is None else timeout_ms / 1000.0
            task.park(max(0.0, min(longest, call.overdue_at - self.process.kernel.now)))
        if call.answer is None and not call.broken:
            self._call = None
            self.close()
            self.on_silence(self.address, call.sent_at)
            raise err.RequestTimedOut(f"{self.address} did not answer {call.api.name}")
        return self._answer_to(call)

    def _under_way(self, request: int) -> Call:
        call = self._call
        if call is None or call.number != request:
            raise err.IllegalStateError(f"{self.address}: request {request} is not under way")
        return call

    def _answer_to(self, call: Call) -> dict[str, Any]:
        self._call = None
        if call.answer is not None:
            return call.answer
        self.close()
        raise err.SocketDisconnectedError(f"{self.address}: the connection broke")

    @property
    def awaits_answer(self) -> bool:
        return self._call is not None

    @property
    def overdue_at(self) -> float:
        return NEVER if self._call is None else self._call.overdue_at

    def deliver(self, call: Call, answer: dict[str, Any]) -> None:
        if self.connected and call is self._call and not self.silent:
            call.answer = answer
            self.heard_at = self.process.kernel.now
            self._slowest = max(self._slowest or 0.0, self.heard_at - call.sent_at)
            if call.waiting is not None:
                call.waiting.wake()

    def close(self) -> None:
        """Break off; a worker that waits learns of it at once."""
        if self.connected:
            self.connected = False
            if self in self.network.connections:
                self.network.connections.remove(self)
            if self._call is not None:
                self._call.broken = True
                if self._call.waiting is not None:
                    self._call.waiting.wake()


class SimulatedCluster(Cluster):
    """The real cluster object, its connections imaginary."""

    def __init__(self, network: Network, process: Process) -> None:
        addresses = [(f"node{node}", 9092) for node in network.brokers.nodes]
        super().__init__(addresses, VirtualHandler(process), metadata_max_age_ms=network.metadata_max_age_ms)
        self._network, self._process = network, process

    def _twin(self, handler: Any) -> Cluster:
        del handler
        return SimulatedCluster(self._network, self._process)

    def _open(
        self, host: str, port: int, node_id: int | None = None, buffers: Any = None, timeout_ms: float | None = None
    ) -> Connection:
        del port, node_id, buffers, timeout_ms
        node = int(host[4:])
        if self._closed:
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        task = self._process.kernel.current
        if task is not None:
            task.park(self._network.delay())
        if node in self._network.brokers.down:
            refused = err.NoBrokersAvailableError(f"{host}: connection refused")
            refused.refused = refused.definite = True
            raise refused
        if self._closed:
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        made = SimulatedConnection(self._network, self._process, node)
        self.reached = True
        self._network.connections.append(made)
        self.open_connections.add(made)  # type: ignore[arg-type]
        return made  # type: ignore[return-value]
