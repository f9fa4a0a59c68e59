"""A proxy in front of a MemoryBroker whose connections can fall silent: open, acknowledged by TCP, and dead."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Any, Callable

from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol import schemas

#: The topic, with two partitions, that the fixture ``broker`` has.
TOPIC = "orders"


class Wire:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        #: The requests that have come over it, by name.
        self.carried: list[str] = []
        self.silent = False
        #: The first bytes of each answer come at once, the rest so many seconds later.
        self.trickle = 0.0

    def close(self) -> None:
        self.client.close()
        self.server.close()


class SilentProxyBroker(MemoryBroker):
    """Its clients reach its nodes through the proxy only, as the proxy's ports are what it announces.

    ``choose(wire, request name)`` is asked for each request that comes from a client: True makes that connection
    silent from there on, both ways.
    """

    def __init__(self, topics: dict[str, int], brokers: int = 1) -> None:
        super().__init__(topics, brokers=brokers)
        self.choose: Callable[[Wire, str], bool] = lambda _wire, _name: False
        self.wires: list[Wire] = []
        self._stopped = True
        self._fronts = {node: socket.create_server(("127.0.0.1", 0)) for node in self._nodes.numbers}

    def _front_of(self, node: int) -> int:
        return int(self._fronts[node].getsockname()[1])

    @property
    def _port(self) -> int:
        return self._front_of(1)

    def _addresses(self) -> list[dict[str, Any]]:
        return [{**each, "port": self._front_of(each["node_id"])} for each in super()._addresses()]

    def start(self) -> MemoryBroker:
        super().start()
        self._stopped = False
        for node in self._fronts:
            threading.Thread(target=self._accept, args=(node,), daemon=True).start()
        return self

    def stop(self) -> None:
        for front in self._fronts.values():
            with contextlib.suppress(OSError):
                front.shutdown(socket.SHUT_RDWR)
        self._stopped = True
        for wire in list(self.wires):
            wire.close()
        super().stop()

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        for front in self._fronts.values():
            front.close()

    def silence_all(self) -> None:
        """Every connection that there is falls silent; new ones work."""
        for wire in list(self.wires):
            wire.silent = True

    def _accept(self, node: int) -> None:
        names = {api.key: api.name for api in schemas.APIS.values()}
        while True:
            try:
                client, _ = self._fronts[node].accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server.ports[node] if self._server else 0))
            except OSError:
                client.close()
                return
            wire = Wire(client, server)
            self.wires.append(wire)
            if self._stopped:  # stop() may have gone through the wires before
                wire.close()
                return
            threading.Thread(target=self._up, args=(wire, names), daemon=True).start()
            threading.Thread(target=self._down, args=(wire,), daemon=True).start()

    def _up(self, wire: Wire, names: dict[int, str]) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = _exactly(wire.client, 6)
                length, key = struct.unpack(">ih", head)
                frame = head + _exactly(wire.client, length - 2)
                wire.carried.append(names[key])
                wire.silent = wire.silent or self.choose(wire, names[key])
                if not wire.silent:
                    wire.server.sendall(frame)
        wire.server.close()

    def _down(self, wire: Wire) -> None:
        with contextlib.suppress(OSError):
            while data := wire.server.recv(65536):
                if wire.trickle:
                    wire.client.sendall(data[:6])
                    data = data[6:]
                    time.sleep(wire.trickle)
                if not wire.silent:
                    wire.client.sendall(data)
        if not wire.silent:
            wire.client.close()


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
