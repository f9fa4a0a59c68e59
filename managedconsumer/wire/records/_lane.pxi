cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    int METH_NOARGS
    ctypedef object (*CFunction "PyCFunction")(void *module, void *nothing)
    bint PyCFunction_CheckExact(object function)
    int PyCFunction_GET_FLAGS(object function)
    void *PyCFunction_GET_SELF(object function)
    CFunction PyCFunction_GET_FUNCTION(object function)
    PyThreadState *PyThreadState_Get()
    uint64_t PyThreadState_GetID(PyThreadState *state)


cdef extern from "_clock.h" nogil:
    double clock_seconds()
    double precise_seconds()


cdef double _EVER = float("inf")
# The longest time (seconds) that a thread waits for a response before it calls the slow path.
cdef double _LONGEST_STAY = 1.0
# The clock's resolution (seconds), at most.
cdef double _LAG = 0.02


cdef inline uint64_t this_thread() noexcept:
    # Not the system's number of the thread, which the next thread may get when this one has ended.
    return PyThreadState_GetID(PyThreadState_Get())


cdef class Source:
    """Gives more chunks to a lane that has used its own up (``runtime.engine._inline``). The GIL guards it."""

    cdef bint is_open(self):
        """True if a thread may wait for a chunk."""
        return False

    cdef object peek(self, double seconds):
        """The next chunk, for which it may wait; None: the slow path has to look."""
        return None

    cdef int take(self) except -1:
        """The lane reads the chunk that ``peek`` has given."""
        return 0


@cython.final
cdef class _ThreadSlot:
    """A thread (or greenlet) that takes from the lane: its number, and the offset of its message in flight."""

    cdef object who
    cdef object greenlet           # a weak reference; None: it is a thread
    cdef long long offset


@cython.final
cdef class Lane:
    """The fast path from a chunk to the threads that consume, see ``managedconsumer.wire.records._lane_py``.

    What happens in ``take`` happens under the GIL and runs no Python code, so it is one step to every other thread: after
    ``detach()`` nothing more comes out of it.
    """

    cdef RecordChunk _chunk
    cdef object _other             # a chunk that something else has decoded, and its messages; the next is the last
    cdef list _ready
    cdef long long _last           # the offset that was taken last of them
    cdef uint64_t _thread          # that has taken last
    cdef object _current           # returns the calling greenlet, where greenlets share a thread
    cdef CFunction _direct         # the C function of it; called for each message, so without the interpreter; or NULL
    cdef void *_module             # the argument of that
    cdef object _owner             # the greenlet that has taken last
    cdef _ThreadSlot _slot         # of that thread or greenlet
    cdef dict _slots               # by the thread's id, or that of the greenlet
    cdef readonly long long count
    cdef object _clock             # in place of the system's, in a simulation
    cdef double _until             # by the clock: the fast path ends then
    cdef Source _source
    cdef bint _last_one            # only the source has more
    cdef double _patience          # seconds that a thread may wait for the source
    cdef double _since             # when the thread has begun to wait (``monotonic``); 0: it has not

    def __init__(self, current=None, here=None, clock=None):
        self._current = None if here is not None else current
        self._direct = NULL
        if PyCFunction_CheckExact(self._current) and PyCFunction_GET_FLAGS(self._current) == METH_NOARGS:
            self._direct = PyCFunction_GET_FUNCTION(self._current)
            self._module = PyCFunction_GET_SELF(self._current)
        self._clock = clock
        self._until = _EVER
        self._since = self._patience = 0.0
        self._slots = {}
        self._slot = _ThreadSlot.__new__(_ThreadSlot)

    cdef inline object _me(self):
        """The calling greenlet."""
        return self._current() if self._direct is NULL else self._direct(self._module, NULL)

    cdef inline double _now(self) except? -1.0:
        return clock_seconds() if self._clock is None else self._clock()

    def allow(self, double seconds):
        """End the fast path after so many seconds; the slow path checks whether the consumer still may hand out."""
        self._until = _EVER if seconds == _EVER else self._now() + seconds - _LAG

    def draw_from(self, Source source, double patience):
        """Let a thread whose chunk is used up wait up to ``patience`` seconds for the next chunk of ``source``."""
        self._source = None if self._clock is not None or self._current is not None else source
        self._patience = patience

    def since(self):
        """Return, once, the time (``time.monotonic``) since which the calling thread waits for the source; 0: it does not."""
        since, self._since = self._since, 0.0
        return since

    def attach(self, chunk not None, who, long long offset, others=(), bint last=False):
        """Let the calling thread, ``who``, take from ``chunk``; its message in flight has ``offset``.

        ``others`` keep their slots. ``last``: no other chunk is buffered, so the lane may take chunks from its source.
        """
        cdef _ThreadSlot slot = self._slot
        self._last_one = last
        if others or len(self._slots) != 1 or slot.who != who or not self._is_last():
            self._slots = {key: slot for key, slot in self._slots.items() if (<_ThreadSlot>slot).who in others}
            slot = _ThreadSlot.__new__(_ThreadSlot)
            slot.who = who
            if self._current is None:
                self._thread = this_thread()
                self._slots[self._thread] = slot
            else:
                self._owner = self._me()
                slot.greenlet = ref(self._owner)
                self._slots[<uintptr_t><void *>self._owner] = slot
            self._slot = slot
        slot.offset = offset
        if isinstance(chunk, RecordChunk):
            self._chunk = <RecordChunk>chunk
        else:
            self._last = -1
            self._other = chunk
            self._ready = chunk.ready

    cdef bint _is_last(self):
        """True if the calling thread has the slot that was used last."""
        if self._current is None:
            return this_thread() == self._thread
        self._owner = self._me()
        return self._slot.greenlet is not None and self._slot.greenlet() is self._owner

    cdef bint _sit(self) except -1:
        """Use the calling thread's slot, which is not the one used last. False: it has none."""
        cdef uint64_t thread
        if self._current is None:
            thread = this_thread()
            slot = self._slots.get(thread)
            if slot is None:
                return False
            self._thread = thread
        else:
            owner = self._me()
            slot = self._slots.get(<uintptr_t><void *>owner)
            if slot is None or (<_ThreadSlot>slot).greenlet() is not owner:  # the number of one that is gone
                return False
            self._owner = owner
        self._slot = <_ThreadSlot>slot
        return True

    def slots(self):
        """Return the threads that have a slot, each with the offset of its message in flight; the lane is detached."""
        cdef _ThreadSlot slot
        return [(slot.who, slot.offset) for slot in self._slots.values()]

    def detach(self):
        """End the fast path."""
        self._chunk = None
        self._owner = None
        if self._ready is not None:
            self._ready = None
            other, self._other = self._other, None
            if self._last >= 0:
                other.position = self._last + 1

    def leave(self):
        """Let each thread take the slow path for its next message. For signal handlers."""
        self.detach()

    def cut(self):
        """``detach`` in the child of a fork."""
        self.detach()

    @property
    def attached(self):
        return self._chunk is not None or self._ready is not None

    cdef inline bint _may_take(self) except -1:
        """True if the calling thread or greenlet has a slot."""
        if self._current is None:
            return this_thread() == self._thread or self._sit()
        return self._me() is self._owner or self._sit()

    cdef Message _next_ready(self):
        cdef Message message
        if self._ready is None or not self._ready or not self._may_take():
            return None
        message = <Message?>self._ready.pop()
        self._slot.offset = self._last = message.offset
        self.count += 1
        return message

    cdef inline Message _next(self):
        cdef View view
        cdef Outcome outcome
        cdef Message message
        cdef RecordChunk chunk = self._chunk
        if self._until != _EVER and self._now() > self._until:
            return None
        if chunk is None:
            return self._next_ready()
        if not chunk.active or chunk._torn or not self._may_take():
            return None
        while chunk._cursor.left > 0 or chunk._step_plain():
            outcome = read_record(&chunk._cursor, &view)
            if outcome == GOOD:
                message = chunk._message(&view)
                chunk.position = view.offset + 1
                self._slot.offset = view.offset
                self.count += 1
                return message
            if outcome != BELOW:
                chunk._note_damage(outcome, &view)
                return None
        return None

    cdef Message _await(self):
        """``_next`` where the chunk is used up: the thread waits for the next chunk."""
        cdef RecordChunk chunk = self._chunk
        cdef Message message = None
        cdef double left
        if not self._last_one or self._source is None or chunk is None or self._patience <= 0.0 or len(self._slots) != 1:
            return None
        if not self._source.is_open() or not self._may_take() or not chunk._used_up():
            return None
        if self._until != _EVER and self._now() > self._until:
            return None
        self._since = precise_seconds()
        while message is None and chunk._used_up() and self._source.is_open():
            chunk._end()
            self._slot.offset = -1
            left = min(_LONGEST_STAY, self._patience) - (precise_seconds() - self._since)
            found = self._source.peek(max(0.0, left))
            if found is None or self._chunk is not chunk:  # not plain, or another thread has detached the lane
                return None
            chunk = <RecordChunk?>found
            if not chunk._begin():
                return None
            self._source.take()
            self._chunk = chunk
            message = self._next()
        if message is not None:
            self._since = 0.0
        return message

    def take(self):
        """Return the next message, or None where the slow path is needed."""
        return self._next()

    def iterate(self, slow, deserializer=None, refused=None):
        """Return an iterator that calls ``slow`` where the fast path ends, until ``slow`` returns None."""
        return _Iterator.__new__(_Iterator, self, slow, deserializer, refused)


cdef bint deserialized(Message message, deserializer, refused, FastPath consumer) except -1:
    """Give ``message`` what the deserializer makes of its value and key.

    ``refused``, or else the consumer, decides about what it raises.

    No signal comes between the lane and the deserializer, nor between that and the user: there is no Python code there.
    """
    value, key = message._value, message._key
    try:
        message._value, message._key = deserializer(value, key)
    except BaseException as error:
        message._value, message._key = value, key
        return consumer._not_deserialized(message, error) if refused is None else refused(message, error)
    return True


cdef class FastPath:
    """Base of the consumers, see ``managedconsumer.wire.records._lane_py``."""

    cdef Lane _lane
    cdef object _applied           # the deserializer, or None

    def _open_lane(self, Lane lane not None, deserializer=None):
        """From now on ``consume()`` takes from ``lane``."""
        self._lane = lane
        self._applied = deserializer

    def _not_deserialized(self, message, error):
        """False: skip the message; otherwise what is raised leaves the position before it."""
        raise NotImplementedError

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
        if unblock_event is None and self._lane is not None:
            message = self._lane._next()
            if message is None and block is True:
                message = self._lane._await()
            if message is not None:
                if self._applied is None or deserialized(<Message>message, self._applied, None, self):
                    return message
        return self._consume_waiting(block, unblock_event)


@cython.final
cdef class _Iterator:
    """The messages of a lane, and those of ``slow``."""

    cdef Lane _lane
    cdef object _slow
    cdef object _deserializer
    cdef object _refused

    def __cinit__(self, Lane lane not None, slow, deserializer, refused):
        self._lane = lane
        self._slow = slow
        self._deserializer = deserializer
        self._refused = refused

    def __iter__(self):
        return self

    cdef inline Message _next(self):
        message = self._lane._next()
        return self._lane._await() if message is None else message

    def __next__(self):
        message = self._next()
        while message is not None:
            if self._deserializer is None or deserialized(<Message>message, self._deserializer, self._refused, None):
                return message
            message = self._next()
        message = self._slow()
        if message is None:
            raise StopIteration
        return message
