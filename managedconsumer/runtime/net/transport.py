"""Bytes over one socket, within deadlines: the same few methods over plain, TLS and gevent sockets.

The plain transport sleeps in the kernel with a receive time-out and ``MSG_WAITALL``, so a response of any size costs
two system calls and gives the GIL away twice: each time it is taken back may cost a full switch interval (5 ms) when
another thread computes, so their number is what counts.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Callable, Final

from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.overdue import NEVER
from managedconsumer.runtime.waiting.greenlets import Turn
from managedconsumer.runtime.waiting.handlers import Handler

if TYPE_CHECKING:
    import mmap

_INBOX_BYTES: Final = 16 << 10
_MIN_TIMEOUT_S: Final = 0.001
#: The fraction by which a kernel's time-out may differ from the time that is left.
_NEARLY: Final = 0.01
# gevent: the rest of a frame is long from here on; the kernel is asked to wait for so much of it, so many seconds.
_LONG_BYTES: Final = 64 << 10
_LOW_WATER_BYTES: Final = 1 << 20
_LOW_WATER_S: Final = 0.1
_timeval = struct.Struct("@ll").pack

FrameSize = Callable[[bytes], int]
"""The size that four bytes announce; raises when it cannot be one."""
BufferFactory = Callable[[int], "bytearray | memoryview | mmap.mmap"]
"""Returns a writable buffer of at least so many bytes; the frame's receiver owns it from then on."""


class PeerClosedError(ConnectionError):
    """The other side ended the stream; ``partial`` says whether in the middle of a frame."""

    def __init__(self, partial: bool) -> None:
        super().__init__("in the middle of an answer" if partial else "without answering")
        self.partial = partial


class Transport:
    """One socket and the bytes received early.  For one thread or greenlet at a time; close it through its hold.

    ``deadline`` is a moment of the handler's clock.  After any exception the stream is of no use any more.
    """

    def __init__(self, handler: Handler, sock: Any, buffer_factory: BufferFactory = bytearray) -> None:
        self._now = handler.now
        self._sock = sock
        self._buffer_factory = buffer_factory
        # Most responses are short and arrive whole in the first read; of a long one this holds the beginning.
        self._inbox = memoryview(bytearray(_INBOX_BYTES))
        self._start = 0
        self._end = 0

    #: True for a plain socket, from which compiled code may receive as well.
    plain = False

    def send(self, data: bytes, deadline: float) -> None:
        """Send everything; raises TimeoutError and OSError."""
        view = memoryview(data)
        while view:
            view = view[self._once(socket.SO_SNDTIMEO, deadline, self._sock.send, view) :]

    def lend_inbox(self) -> tuple[memoryview, int]:
        """Return the buffer of early bytes, and their number from its beginning on."""
        self._move_up()
        return self._inbox, self._end

    def take_back_inbox(self, held: int) -> None:
        """Note that the buffer has ``held`` bytes now, from its beginning on."""
        self._start, self._end = 0, held

    def _receive_some(self, view: memoryview, deadline: float, flags: int = 0) -> int:
        """Wait for at least one byte; 0 at the end of the stream."""
        return self._once(socket.SO_RCVTIMEO, deadline, self._sock.recv_into, view, len(view), flags)

    def _once(self, option: int, deadline: float, call: Callable[..., int], *args: Any) -> int:
        """Call ``call``, which waits for the socket until ``deadline``; ``option``: the kernel's time-out for it."""
        raise NotImplementedError

    # For the rest of a frame.
    _FLAGS = 0

    def _receive_all(self, view: memoryview, deadline: float) -> None:
        while view:
            count = self._receive_some(view, deadline, self._FLAGS)
            if not count:
                raise PeerClosedError(partial=True)
            view = view[count:]

    def receive_frame(self, frame_size: FrameSize, deadline: float, begins_by: float = NEVER) -> memoryview:
        """The next frame without its four size bytes, in its own buffer.

        :raises TimeoutError: it was not complete by ``deadline``, or nothing of it had come by ``begins_by``
        :raises PeerClosedError: the stream ended
        """
        while (held := self._end - self._start) < 4:
            self._fill_inbox(deadline if held else min(deadline, begins_by))
        size = frame_size(bytes(self._inbox[self._start : self._start + 4]))
        frame, early = self._begin(size)
        if early < size:
            self._receive_all(frame[early:], deadline)
        return frame

    def _begin(self, size: int) -> tuple[memoryview, int]:
        """A frame of ``size`` bytes, and how many of them have come."""
        frame = memoryview(self._buffer_factory(size))[:size]
        start = self._start + 4
        early = min(size, self._end - start)
        frame[:early] = self._inbox[start : start + early]
        self._start = start + early
        if self._start == self._end:
            self._start = self._end = 0
        return frame, early

    def beginning(self, count: int, deadline: float) -> bytes:
        """The first ``count`` bytes (16 KiB at most) of a frame whose size was refused. The stream ends with this.

        :raises TimeoutError: they have not come by then
        :raises PeerClosedError: the stream ended
        """
        stop = 4 + min(count, len(self._inbox) - 4)
        while self._end - self._start < stop:
            self._fill_inbox(deadline)
        return bytes(self._inbox[self._start + 4 : self._start + stop])

    def _left(self, deadline: float) -> float:
        """Return the seconds up to ``deadline``; raises TimeoutError when it is over."""
        seconds = deadline - self._now()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def _fill_inbox(self, deadline: float) -> None:
        self._move_up()
        self._note(self._receive_some(self._inbox[self._end :], deadline))

    def _move_up(self) -> None:
        if self._start:
            held = bytes(self._inbox[self._start : self._end])
            self._inbox[: len(held)] = held
            self._start, self._end = 0, len(held)

    def _note(self, count: int) -> None:
        if not count:
            raise PeerClosedError(partial=self._end > self._start)
        self._end += count


class _BlockingTransport(Transport):
    """A plain socket that blocks in the kernel; only its own thread waits."""

    plain = True
    # The kernel counts the time-out over the whole of such a read, so dripping bytes do not extend it; it returns early
    # on a signal, at the time-out, or at the end of the stream.
    _FLAGS = socket.MSG_WAITALL

    def __init__(self, handler: Handler, sock: Any, buffer_factory: BufferFactory = bytearray) -> None:
        super().__init__(handler, sock, buffer_factory)
        sock.settimeout(None)
        self._limits = {socket.SO_SNDTIMEO: 0.0, socket.SO_RCVTIMEO: 0.0}

    def _once(self, option: int, deadline: float, call: Callable[..., int], *args: Any) -> int:
        while True:
            self._limit(option, deadline)
            try:
                return call(*args)
            except BlockingIOError:
                self._out_of_time(deadline)

    def _out_of_time(self, deadline: float) -> None:
        """Raise TimeoutError if the deadline is over: the kernel's time-out may have been a little too short."""
        if self._now() >= deadline - _MIN_TIMEOUT_S:
            raise TimeoutError from None

    def _limit(self, option: int, deadline: float) -> None:
        seconds = self._left(deadline)
        # A time-out that is nearly the wanted one stays: this saves a system call for each operation.
        if abs(seconds - self._limits[option]) < _NEARLY * seconds:
            return
        self._limits[option] = seconds
        # Zero would mean for ever.
        whole, fraction = divmod(max(seconds, _MIN_TIMEOUT_S), 1)
        self._sock.setsockopt(socket.SOL_SOCKET, option, _timeval(int(whole), int(fraction * 1e6)))


class _TimeoutTransport(Transport):
    """A TLS socket in a thread, or any socket on a system without the kernel's time-outs."""

    def _once(self, option: int, deadline: float, call: Callable[..., int], *args: Any) -> int:
        self._sock.settimeout(self._left(deadline))
        return call(*args)


class _GreenTransport(Transport):
    """gevent's sockets: one timer around each operation, as their own time-outs start anew with every packet."""

    def __init__(self, handler: Handler, sock: Any, buffer_factory: BufferFactory = bytearray) -> None:
        super().__init__(handler, sock, buffer_factory)
        from gevent import Timeout

        self._timeout: Any = Timeout
        self._turn = Turn(handler.now)
        # TLS may hold received bytes itself, which the kernel does not count.
        self._low_water = sys.platform == "linux" and not net.is_tls(sock)
        sock.settimeout(None)

    def send(self, data: bytes, deadline: float) -> None:
        with self._timer(deadline):
            super().send(data, deadline)

    def receive_frame(self, frame_size: FrameSize, deadline: float, begins_by: float = NEVER) -> memoryview:
        self._turn.begin()
        if self._start == self._end and begins_by < deadline:
            with self._timer(begins_by):
                self._fill_inbox(begins_by)
        with self._timer(deadline):
            return super().receive_frame(frame_size, deadline)

    def beginning(self, count: int, deadline: float) -> bytes:
        with self._timer(deadline):
            return super().beginning(count, deadline)

    def _receive_all(self, view: memoryview, deadline: float) -> None:
        """Receive the rest of a long frame by few wake-ups of the hub: the kernel waits until much of it has come."""
        if not self._low_water or len(view) < _LONG_BYTES:
            return super()._receive_all(view, deadline)
        self._sock.settimeout(_LOW_WATER_S)
        lowest = _LOW_WATER_BYTES
        try:
            while view:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(view), lowest))
                try:
                    count = self._receive_some(view, deadline)
                except TimeoutError:
                    self._left(deadline)
                    # The bytes come slowly, or the kernel's buffer holds fewer: take what is there, as it comes.
                    lowest = 1
                    continue
                if not count:
                    raise PeerClosedError(partial=True)
                view = view[count:]
        finally:
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _receive_some(self, view: memoryview, deadline: float, flags: int = 0) -> int:
        # A peer that sends without a pause never makes this greenlet wait: neither the timer nor others would run.
        self._left(deadline)
        self._turn.give()
        return super()._receive_some(view, deadline, flags)

    def _once(self, option: int, deadline: float, call: Callable[..., int], *args: Any) -> int:
        return call(*args)

    def _timer(self, deadline: float) -> Any:
        return self._timeout(self._left(deadline), TimeoutError())


def make_transport(handler: Handler, sock: Any, buffer_factory: BufferFactory = bytearray) -> Transport:
    """The transport that suits a connected socket (after the TLS handshake, if any)."""
    if net.is_green(sock):
        return _GreenTransport(handler, sock, buffer_factory)
    if net.is_tls(sock) or sys.platform not in ("linux", "darwin"):
        return _TimeoutTransport(handler, sock, buffer_factory)
    return _BlockingTransport(handler, sock, buffer_factory)
