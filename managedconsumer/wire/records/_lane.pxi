cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyThreadState_Get()
    uint64_t PyThreadState_GetID(PyThreadState *state)


cdef inline uint64_t this_thread() noexcept:
    # Not the system's number of the thread, which the next thread may get when this one has ended.
    return PyThreadState_GetID(PyThreadState_Get())


@cython.final
cdef class Lane:
    """The fast path from a chunk to the thread that consumes, see ``managedconsumer.wire.records._lane_py``.

    What happens in ``take`` happens under the GIL and runs no Python code, so it is one step to every other thread: after
    ``detach()`` nothing more comes out of it.
    """

    cdef RecordChunk _chunk
    cdef uint64_t _thread
    cdef object _current           # gives the greenlet, where threads do not tell consumers apart
    cdef object _owner
    cdef readonly long long last_offset
    cdef readonly long long count

    def __init__(self, current=None, here=None):
        self._current = None if here is not None else current
        self.last_offset = -1

    def attach(self, RecordChunk chunk not None):
        """Let the calling thread take from ``chunk``, whose last message it has in hand."""
        self._thread = this_thread()
        self._owner = None if self._current is None else self._current()
        self._chunk = chunk

    def detach(self):
        """From here on nothing is taken."""
        self._chunk = None
        self._owner = None

    def leave(self):
        """Let the thread take the slow path for its next message. For signal handlers."""
        self.detach()

    def cut(self):
        """``detach`` in the child of a fork."""
        self.detach()

    @property
    def attached(self):
        return self._chunk is not None

    cdef inline Message _next(self):
        cdef View view
        cdef Outcome outcome
        cdef Message message
        cdef RecordChunk chunk = self._chunk
        if chunk is None or not chunk.active or chunk._torn:
            return None
        if self._current is None:
            if this_thread() != self._thread:
                return None
        elif self._current() is not self._owner:
            return None
        while chunk._cursor.left > 0 or chunk._step_plain():
            outcome = read_record(&chunk._cursor, &view)
            if outcome == GOOD:
                message = chunk._message(&view)
                chunk.position = view.offset + 1
                self.last_offset = view.offset
                self.count += 1
                return message
            if outcome != BELOW:
                chunk._note_damage(outcome, &view)
                return None
        return None

    def take(self):
        """The next message, or None where the slow path is needed."""
        return self._next()

    def iterate(self, slow):
        """An iterator that calls ``slow`` where the fast path ends, and ends where that gives None."""
        return _Iterator.__new__(_Iterator, self, slow)


cdef class FastPath:
    """Base of the consumers, see ``managedconsumer.wire.records._lane_py``."""

    cdef Lane _fast
    cdef object _lane              # any other, under use_rdkafka

    def _open_lane(self, lane):
        """From now on ``consume()`` takes from ``lane``."""
        if isinstance(lane, Lane):
            self._fast = lane
        else:
            self._lane = lane

    @cython.binding(False)  # what the interpreter calls most quickly
    @cython.embedsignature(False)
    def consume(self, block=True, unblock_event=None):
        """consume($self, /, block=True, unblock_event=None)
--

The next message, or None after ``consumer_timeout_ms`` without one (at once with ``block=False``).

Coming back for the next message tells the consumer that the last one is finished. Several threads may call.
With ``unblock_event`` (pykafka's) it returns None as soon as the event is set, also where messages are there.
Raises what ended the consumer, ConsumerStoppedException when it is not running, an exception of a callback
once, CorruptRecordError and the deserializer's exceptions as ``on_error`` decides.
"""
        if unblock_event is None:
            if self._fast is not None:
                message = self._fast._next()
                if message is not None:
                    return message
            elif self._lane is not None:
                message = self._lane.take()
                if message is not None:
                    return message
        return self._consume_waiting(block, unblock_event)


@cython.final
cdef class _Iterator:
    """Messages of a lane, and what ``slow`` gives."""

    cdef Lane _lane
    cdef object _slow

    def __cinit__(self, Lane lane not None, slow):
        self._lane = lane
        self._slow = slow

    def __iter__(self):
        return self

    def __next__(self):
        message = self._lane._next()
        if message is not None:
            return message
        message = self._slow()
        if message is None:
            raise StopIteration
        return message
