"""The limit: one connection per broker, whole answers received into one buffer, batch headers counted, bytes dropped.

No group, no CRC, no decompression, no message: what any Python client pays at least. ``size`` bytes are credited for
each record that a header announces.
"""

from __future__ import annotations

import socket
import ssl
import struct

from measure import Job, main

_RESPONSE_BYTES = 50 << 20
_PARTITION_BYTES = 1 << 20
_BATCH = struct.Struct(">qi")
_COUNT = struct.Struct(">i")


class _Broker:
    """A blocking connection that keeps one buffer for all answers."""

    def __init__(self, host: str, port: int, cafile: str = "") -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A TLS socket takes no flags.
        self._flags = 0 if cafile else socket.MSG_WAITALL
        if cafile:
            context = ssl.create_default_context(cafile=cafile)
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        self._buffer = bytearray(1 << 20)
        self._length = bytearray(4)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """One answer, valid until the next."""
        self._fill(memoryview(self._length))
        size = int.from_bytes(self._length, "big")
        if size > len(self._buffer):
            self._buffer = bytearray(size * 2)
        view = memoryview(self._buffer)[:size]
        self._fill(view)
        return view

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            got = self._socket.recv_into(view[done:], 0, self._flags)
            if not got:
                raise ConnectionError("the broker hung up")
            done += got


def _walk(records: memoryview, offset: int) -> tuple[int, int]:
    """(records from ``offset`` on that the complete batches' headers announce, the offset behind them)."""
    at, end, count = 0, len(records), 0
    while end - at >= 61:
        base, length = _BATCH.unpack_from(records, at)
        if at + 12 + length > end:
            break
        (last,) = _COUNT.unpack_from(records, at + 23)
        count += base + last + 1 - max(base, offset)
        offset = base + last + 1
        at += 12 + length
    return count, offset


def fetch(job: Job) -> None:
    """Fetch, count, throw away; one request at a time."""
    from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
    from managedconsumer.runtime.net.connection import ConnectionSettings
    from managedconsumer.runtime.net.security import Security
    from managedconsumer.runtime.waiting.handlers import ThreadingHandler
    from managedconsumer.wire.protocol import framing, schemas

    security = Security("SSL", ssl_cafile=job.cafile) if job.cafile else Security()
    settings = ConnectionSettings("raw", security=security)
    cluster = Cluster(parse_bootstrap(job.bootstrap), ThreadingHandler(), settings)
    info = cluster.refresh([job.topic]).topics[job.topic]
    leader = cluster.snapshot.brokers[info.partitions[0].leader]
    cluster.close()
    version = 12
    broker = _Broker(leader.host, leader.port, job.cafile)
    positions = dict.fromkeys(sorted(info.partitions), 0)

    def ask() -> None:
        body = {
            "replica_id": -1,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": _RESPONSE_BYTES,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": job.topic, "partitions": [_entry(n, at) for n, at in positions.items()]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        frame = framing.encode_frame(schemas.FETCH, version, 1, "raw", schemas.FETCH.encode(version, body))
        broker.send(frame)

    job.assigned()
    records = 0
    ask()
    while records < job.count:
        answer = broker.receive()
        _, body = framing.parse_response_header(schemas.FETCH, version, answer)
        found = schemas.FETCH.decode(version, body)
        for part in found["responses"][0]["partitions"]:
            if part["error_code"]:
                raise RuntimeError(f"error {part['error_code']}")
            got, positions[part["partition_index"]] = _walk(
                part["records"] or memoryview(b""), positions[part["partition_index"]]
            )
            records += got
        if records < job.count:
            ask()
    job.done(records * job.size)


def _entry(partition: int, offset: int) -> dict[str, int]:
    return {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": _PARTITION_BYTES,
    }


if __name__ == "__main__":
    main({"fetch": fetch})
