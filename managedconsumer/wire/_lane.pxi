from cpython.pythread cimport PyThread_get_thread_ident


@cython.final
cdef class Lane:
    """The short way from a chunk to the thread that consumes, see ``managedconsumer.wire._lane_py``.

    What happens in ``take`` happens under the GIL and runs no Python code, so it is one step to every other thread: after
    ``detach()`` nothing more comes out of it.
    """

    cdef RecordChunk _chunk
    cdef unsigned long _thread
    cdef object _current           # names the greenlet, where threads do not tell consumers apart
    cdef object _owner
    cdef readonly long long last_offset
    cdef readonly long long count

    def __init__(self, current=None, native=True, lock=None):
        self._current = None if native else current
        self.last_offset = -1

    def attach(self, RecordChunk chunk not None):
        """Let the calling thread take from ``chunk``, whose last message it has in hand."""
        self._thread = PyThread_get_thread_ident()
        self._owner = None if self._current is None else self._current()
        self._chunk = chunk

    def detach(self):
        """From here on nothing is taken."""
        self._chunk = None
        self._owner = None

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
            if PyThread_get_thread_ident() != self._thread:
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
        """The next message, or None where the long way has to be gone."""
        return self._next()

    def iterate(self, slow):
        """An iterator that calls ``slow`` where the short way ends, and ends where that gives None."""
        return _Iterator.__new__(_Iterator, self, slow)

    def caller(self, slow):
        """``consume()`` as one call: the short way, or what ``slow(block, unblock_event)`` gives."""
        return _Caller.__new__(_Caller, self, slow).consume


@cython.final
cdef class _Caller:
    """See ``Lane.caller``."""

    cdef Lane _lane
    cdef object _slow

    def __cinit__(self, Lane lane not None, slow):
        self._lane = lane
        self._slow = slow

    @cython.binding(False)  # a plain built-in method is what the interpreter calls most quickly
    def consume(self, block=True, unblock_event=None):
        message = self._lane._next()
        if message is not None:
            return message
        return self._slow(block, unblock_event)


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
