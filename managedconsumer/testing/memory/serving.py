"""The in-memory broker as its clients see it: nodes that listen, logins, faults, and who answers which request."""

from __future__ import annotations

import ssl
from typing import Any, Callable, Mapping, TypeVar

from managedconsumer.errors import IllegalStateError
from managedconsumer.testing.memory.api_versions import API_VERSIONS_KEY, AUTHENTICATE_KEY, HANDSHAKE_KEY
from managedconsumer.testing.memory.logins import Login
from managedconsumer.testing.memory.nodes import Nodes
from managedconsumer.testing.memory.request_handlers import RequestHandlers
from managedconsumer.testing.memory.server import Answer, Peer, Server
from managedconsumer.wire.protocol import framing, schemas

Self = TypeVar("Self", bound="Serving")
_S = schemas
_BEFORE_LOGIN = (API_VERSIONS_KEY, HANDSHAKE_KEY, AUTHENTICATE_KEY)


class Serving:
    """The base of :class:`~managedconsumer.testing.MemoryBroker`."""

    def __init__(
        self,
        nodes: Nodes,
        port: int,
        *,
        users: Mapping[str, str] | None,
        tls: ssl.SSLContext | None,
        delay: float,
        interval: float,
        modern: bool,
    ) -> None:
        self._nodes = nodes
        self._ports = {node: port + node - 1 if port else 0 for node in nodes.numbers}
        self._users, self._tls = dict(users or {}), tls
        self._handlers = RequestHandlers(
            nodes, self._addresses, Server.now, self._after, delay=delay, interval=interval, modern=modern
        )
        self._topics = self._handlers.topics
        self._waiting: list[Callable[[], bool]] = []
        self._server: Server | None = None
        self._at = 1  # the node that the request under way came to

    # -- lifecycle ------------------------------------------------------------------------------------

    def start(self: Self) -> Self:
        """Listen. Raises OSError when ``port`` is taken, IllegalStateError when it runs already."""
        if self._server is not None:
            raise IllegalStateError("the broker is running already")
        self._server = Server(self._receive, {node: self._ports[node] for node in self._nodes.up}, self._tls)
        self._ports.update(self._server.ports)
        self._server.call(self._handlers.reload)
        return self

    def stop(self) -> None:
        """Hang up; topics, commits and members stay for another :meth:`start`. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            self._waiting.clear()

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """``host:port`` of all nodes; the same after a :meth:`stop` and :meth:`start`.

        Raises IllegalStateError before the first start.
        """
        ports = [self._port, *(self._ports[node] for node in self._nodes.numbers[1:])]
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def _port(self) -> int:
        if not self._ports[1]:
            raise IllegalStateError("start() the broker first: it has no port yet")
        return self._ports[1]

    def _addresses(self) -> list[dict[str, Any]]:
        ports = {**self._ports, 1: self._port}
        return [{"node_id": node, "host": "127.0.0.1", "port": ports[node]} for node in self._nodes.up]

    def _do(self, work: Callable[[], Any]) -> Any:
        return work() if self._server is None else self._server.call(work)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        if self._server is not None:
            self._server.after(seconds, call)

    def _lead(self, topic: str, partition: int, node: int | None) -> None:
        self._handlers.lead(topic, partition, node)
        self._wake()

    def _leave(self, node: int) -> None:
        self._handlers.leave(node)
        if self._server is not None:
            self._server.close_node(node)
        self._wake()

    def _come_back(self, node: int) -> None:
        if self._server is not None and not self._nodes.is_up(node):
            self._server.open(node, self._ports[node])
        self._nodes.bring_up(node)

    # -- requests, in the server's thread ---------------------------------------------------------------

    def _receive(self, peer: Peer, header: framing.RequestHeader, body: dict[str, Any], answer: Answer) -> None:
        """Let a request through to :meth:`_handle`, after the login and the faults."""
        fault = self._handlers.faults.meet(header.api, body)
        if fault is None:
            self._admit(peer, header, body, answer)
        elif fault.code:
            answer(self._handlers.refusal(header, body, fault.code))
        elif not fault.drop:
            self._after(fault.seconds, lambda: self._admit(peer, header, body, answer))
        else:
            if fault.handled:
                self._admit(peer, header, body, lambda _answer: self._hang_up(peer))
            else:
                self._hang_up(peer)

    def _admit(self, peer: Peer, header: framing.RequestHeader, body: dict[str, Any], answer: Answer) -> None:
        if peer.login is None:
            peer.login = Login(self._users)
        login: Login = peer.login
        if header.api is _S.SASL_HANDSHAKE:
            answer(login.handshake(body))
        elif header.api is _S.SASL_AUTHENTICATE:
            said = login.authenticate(body)
            if said is None:
                self._hang_up(peer)
            else:
                answer(said)
        elif not login.done and header.api.key not in _BEFORE_LOGIN:
            self._hang_up(peer)  # as Kafka does
        else:
            self._at = peer.node
            if header.api is _S.FETCH:
                self._topics.name_topics(body)
            refused = self._handlers.refuse(peer.node, header, body)
            if refused is None:
                self._handle(header, body, answer)
            else:
                answer(refused)

    def _hang_up(self, peer: Peer) -> None:
        if self._server is not None:
            self._server.close(peer)

    def _handle(self, header: framing.RequestHeader, body: dict[str, Any], answer: Answer) -> None:
        if header.api is _S.FETCH:
            self._fetch(body, answer)
        elif header.api is _S.JOIN_GROUP:
            self._handlers.groups.join(header.version, header.client_id, body, answer)
        elif header.api is _S.SYNC_GROUP:
            self._handlers.groups.sync(header.version, body, answer)
        elif header.api is _S.PRODUCE:
            response = self._handlers.answer(self._at, header, body)
            self._wake()
            answer(response if body["acks"] else None)
        else:
            answer(self._handlers.answer(self._at, header, body))

    def _fetch(self, body: dict[str, Any], answer: Answer) -> None:
        node = self._at

        def ready() -> bool:
            response, size = self._topics.fetch(body, node)
            if size >= max(1, body["min_bytes"]):
                answer(response)
                return True
            return False

        def end_of_wait() -> None:
            if ready in self._waiting:
                self._waiting.remove(ready)
                answer(self._topics.fetch(body, node)[0])

        if ready() or self._server is None:
            return
        self._waiting.append(ready)
        self._server.after(body["max_wait_ms"] / 1000.0, end_of_wait)

    def _wake(self) -> None:
        """Logs have changed: a fetch that waits may have enough now."""
        self._waiting = [ready for ready in self._waiting if not ready()]
