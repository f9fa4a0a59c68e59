"""The limit where messages come alone: one blocking connection, the same request again with some offsets moved.

No group, no second thread, no checksum, no check of what comes, no object for a message but its value: what a Python
program pays at least for the system calls and for waking up. A batch must hold one record without a key.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients import Handle, Spec

_VERSION = 16
_HEAD = struct.Struct(">ihhihxiiibii")
_PART = struct.Struct(">iiqiqix")
#: Nothing forgotten, no rack, no tagged fields.
_TAIL = b"\1\1\0"
_ANSWER_HEAD = 4 + 4 + 1  # length, correlation id, no tagged fields
_PART_HEAD = struct.Struct(">ihqqqbi")
_BATCH = struct.Struct(">q15xi")  # base offset, and the last offset's distance from it
_RECORDS_AT = 61
_PARTITION_BYTES = 1 << 20
_RESPONSE_BYTES = 50 << 20


class _Session:
    """A fetch session (KIP-227) over one connection."""

    def __init__(self, connection: socket.socket, topic_id: bytes, partitions: list[int]) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 20)
        self._topic = topic_id
        self._id = self._epoch = 0
        self._moved = dict.fromkeys(partitions, 0)

    def ask(self) -> None:
        """Ask for what comes next; only positions that have moved are named."""
        topics = b"\1"  # the length of an array is written plus one: none
        if self._moved:
            parts = b"".join(_PART.pack(n, -1, at, -1, -1, _PARTITION_BYTES) for n, at in self._moved.items())
            topics = b"\2%b%c%b\0" % (self._topic, len(self._moved) + 1, parts)
        size = _HEAD.size - 4 + len(topics) + len(_TAIL)
        head = _HEAD.pack(size, 1, _VERSION, self._epoch, -1, 500, 1, _RESPONSE_BYTES, 0, self._id, self._epoch)
        self._socket.sendall(head + topics + _TAIL)
        self._epoch += 1

    def values(self) -> list[bytes]:
        """The values of the answer."""
        buffer = self._buffer
        view, got = memoryview(buffer), self._socket.recv_into(buffer)
        size = int.from_bytes(buffer[:4], "big") + 4
        while 0 < got < size:
            got += self._socket.recv_into(view[got:size])
        if not got:
            raise ConnectionError("the broker hung up")
        at = _ANSWER_HEAD + 6  # behind the time of throttling and the error
        self._id = int.from_bytes(buffer[at : at + 4], "big")
        self._moved = {}
        found: list[bytes] = []
        at += 4
        if buffer[at] < 2:
            return found
        at += 1 + 16
        parts = buffer[at] - 1
        at += 1
        for _ in range(parts):
            number, error, _, _, _, _, _ = _PART_HEAD.unpack_from(buffer, at)
            if error:
                raise RuntimeError(f"error {error}")
            at += _PART_HEAD.size
            length = shift = 0
            while True:
                byte = buffer[at]
                at += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            end = at + length - 1
            while at < end:
                base, last = _BATCH.unpack_from(buffer, at)
                size = int.from_bytes(buffer[at + 8 : at + 12], "big") + 12
                # Before a value of 100 bytes: length (2), attributes, time, offset, no key (1 each), length (2).
                found.append(bytes(view[at + _RECORDS_AT + 8 : at + size - 1]))
                self._moved[number] = base + last + 1
                at += size
            at = end + 1
        return found


def read(spec: Spec, handle: Handle) -> None:
    """Hand every value to ``handle``."""
    from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
    from managedconsumer.runtime.net.connection import ConnectionSettings
    from managedconsumer.runtime.waiting.handlers import ThreadingHandler

    cluster = Cluster(parse_bootstrap(spec.bootstrap), ThreadingHandler(), ConnectionSettings("bare"))
    info = cluster.refresh([spec.topic]).topics[spec.topic]
    leader = cluster.snapshot.brokers[info.partitions[0].leader]
    cluster.close()
    with socket.create_connection((leader.host, leader.port)) as connection:
        session = _Session(connection, info.topic_id, sorted(info.partitions))
        while True:
            session.ask()
            for value in session.values():
                handle(value)
