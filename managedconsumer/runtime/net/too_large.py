"""Reads the first bytes of a response that is larger than a frame may be, before the connection is closed."""

from __future__ import annotations

from typing import Any, Final

from managedconsumer.runtime.net.sockets import SocketHold
from managedconsumer.runtime.net.transport import Transport
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.records.beginning import decode_beginning

# How long the first bytes may take (seconds), and how many of them there should be.
_PATIENCE_S: Final = 1.0
_ENOUGH_BYTES: Final = 16000


def beginning_of_answer(
    transport: Transport, hold: SocketHold, api: Api, version: int, size: int, now: float
) -> dict[str, Any] | None:
    """Return the response in the refused frame of ``size`` bytes, up to its first records. None: it is unreadable."""
    try:
        hold.enter()
        try:
            first = transport.beginning(min(size, _ENOUGH_BYTES), now + _PATIENCE_S)
        finally:
            hold.leave()
    except (OSError, ValueError):  # it did not come in time, or the connection ended
        return None
    return decode_beginning(api, version, first)
