"""The socket between a Python worker and Spark's JVM: acknowledges at once what the JVM sends. Linux only.

The JVM sends each task in two pieces, and Nagle's algorithm keeps the second one back until the first is acknowledged.
A worker that has just sent rows delays that acknowledgement by 40 ms. Unix domain sockets avoid it, but are a setting.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
import stat
from typing import Mapping

QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
_sockets: dict[int, list[socket.socket]] = {}


def acknowledge_at_once() -> None:
    """Set TCP_QUICKACK after each task of this process. Call it in a task before the process opens own connections.

    The kernel forgets the option when data is sent, so it is set again after the last bytes of each task: then Spark's
    daemon collects garbage. A failure changes nothing. Only Spark's own thread of the worker calls it.
    """
    if QUICKACK is None or os.getpid() in _sockets:
        return
    _sockets[os.getpid()] = found = _loopback_sockets()
    if found:
        gc.callbacks.append(_after_collection)


def _after_collection(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2 and QUICKACK is not None:
        for each in _sockets.get(os.getpid(), ()):
            try:
                each.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
            except OSError:  # the JVM has closed it
                pass


def _loopback_sockets() -> list[socket.socket]:
    """Duplicates of this process's TCP connections to this machine; they live as long as the process."""
    found: dict[int, socket.socket] = {}
    try:
        for name in os.listdir("/proc/self/fd"):
            status = os.stat(f"/proc/self/fd/{name}")
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found:
                each = socket.socket(fileno=os.dup(int(name)))
                if _is_loopback(each):
                    found[status.st_ino] = each
                else:
                    each.close()
    except OSError:
        pass
    return [*found.values()]


def _is_loopback(each: socket.socket) -> bool:
    if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
        return False
    try:
        return ipaddress.ip_address(each.getpeername()[0]).is_loopback
    except (OSError, ValueError):  # it listens, or the peer has gone
        return False
