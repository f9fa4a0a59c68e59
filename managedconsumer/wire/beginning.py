"""Reading an answer of which only the first bytes are there: it was too large to be received."""

from __future__ import annotations

import mmap
from typing import Any

from managedconsumer.errors import ProtocolError
from managedconsumer.wire import framing
from managedconsumer.wire.api import Api


def decode_beginning(api: Api, version: int, size: int, beginning: bytes) -> dict[str, Any] | None:
    """The answer in a frame of ``size`` bytes; what lies behind ``beginning`` reads as zeros. None: it makes no sense.

    Takes no memory for the zeros, as the system gives pages only to what is written.
    """
    try:
        frame = memoryview(mmap.mmap(-1, size))
        frame[: len(beginning)] = beginning[:size]
        _, body = framing.parse_response_header(api, version, frame)
        return api.decode(version, body)
    except (ProtocolError, OSError, ValueError):
        return None
