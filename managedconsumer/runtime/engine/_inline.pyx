# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Compiled: a waiting consuming thread receives the next response itself, updates the state and repeats the request.

This is :class:`~managedconsumer.fetch.leader.LeaderFetch` for the usual case at low rates: the same request with moved
offsets, and a response of records. Everything else stays in the connection's inbox, and the connection goes back to its
fetch worker, which asks ``LeaderFetch``. ``tests/fetch/test_inline_parity.py`` compares the two.

No Python code runs in here, but signal handlers do between two responses. ``poll()`` releases the GIL, and so does the
check of a chunk's batches, before anything of the response is noted; receiving and sending never wait. So each response
is atomic to all other threads. ``FetchCollector.settle_lane`` copies a :class:`Wire`'s state to the consumer's objects,
under the consumer's lock, before any code reads them.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from managedconsumer.wire.records._recordread cimport big32, big64
from managedconsumer.wire.records._records cimport Source

from managedconsumer.wire.records._records import RecordChunk


cdef extern from "<poll.h>" nogil:
    ctypedef unsigned long nfds_t
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, nfds_t count, int timeout_ms)
    enum:
        POLLIN

cdef extern from "<sys/types.h>" nogil:
    ctypedef long ssize_t

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *data, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    enum:
        MSG_DONTWAIT

cdef extern from *:
    """
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    """
    enum:
        MSG_NOSIGNAL

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void *data, size_t size)
    ssize_t write(int fd, const void *data, size_t size)

cdef extern from "../../wire/records/_clock.h" nogil:
    double precise_seconds()


cdef enum:
    MOST_WIRES = 32           # per consumer; the other leaders' workers receive by themselves
    PART_BYTES = 33           # of a partition in a request
    TOPIC_BYTES = 18
    HEAD_BYTES = 64           # of a request, beside its client id and its topics
    LEAST_ANSWER = 17         # bytes of a response without partitions
    PART_HEAD = 36            # of a partition in a response, up to the length of its records


cdef inline uint8_t *put16(uint8_t *at, int value) noexcept nogil:
    at[0], at[1] = <uint8_t>(value >> 8), <uint8_t>value
    return at + 2


cdef inline uint8_t *put32(uint8_t *at, int32_t value) noexcept nogil:
    cdef int shift
    for shift in range(4):
        at[shift] = <uint8_t>(<uint32_t>value >> (24 - 8 * shift))
    return at + 4


cdef inline uint8_t *put64(uint8_t *at, int64_t value) noexcept nogil:
    return put32(put32(at, <int32_t>(value >> 32)), <int32_t>value)


cdef inline uint8_t *put_length(uint8_t *at, uint32_t length) noexcept nogil:
    """A compact length."""
    length += 1
    while length > 127:
        at[0] = <uint8_t>(length & 127 | 128)
        at += 1
        length >>= 7
    at[0] = <uint8_t>length
    return at + 1


cdef inline Py_ssize_t get_length(const uint8_t **at, const uint8_t *stop) noexcept nogil:
    """A compact length; -1: null; -2: damaged."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < stop and shift < 35:
        byte = at[0][0]
        value |= <uint64_t>(byte & 0x7F) << shift
        at[0] += 1
        if not byte & 0x80:
            return <Py_ssize_t>value - 1 if value <= 0x7FFFFFFF else -2
        shift += 7
    return -2


cdef struct Line:
    # A partition of the request: the values sent, and those of the responses.
    int32_t number
    int32_t leader_epoch
    int32_t last_epoch
    int32_t most_bytes
    int64_t offset            # where the next fetch begins
    int64_t high
    int64_t stable
    int64_t start
    int64_t position          # behind the last delivered message; -1: none was delivered
    int64_t batch_bytes
    int topic
    bint moved                # the next request has to name the new offset
    bint touched              # the consumer's objects are not updated yet


cdef struct Part:
    # A partition of a response.
    int line
    int64_t high
    int64_t stable
    int64_t start
    const uint8_t *records
    Py_ssize_t size


cdef class Wire:
    """A fetch worker's connection that consuming threads receive from, with its request in flight.

    ``lent`` is the connection (``net.connection.Lent``), ``asked`` the request (``fetch.leader.Lent``).
    """

    cdef readonly bint recalled         # its worker wants it back, or has to handle its inbox
    cdef readonly bint inside           # a thread waits for it
    cdef readonly bint patient          # the request in flight is a long poll
    cdef readonly long long rounds      # responses received
    cdef readonly int correlation_id    # of the request in flight
    cdef readonly int session_epoch
    cdef readonly double sent_at, heard_at, overdue_at, slowest, quiet_since
    cdef readonly bytes unsent          # of the request in flight
    cdef readonly list queues
    cdef readonly object owner          # the worker's
    cdef int _fd, _version, _session, _count, _topics, _wait_ms, _quiet_ms, _least_bytes, _most_bytes, _isolation
    cdef double _soon_s, _quiet_after, _took, _longest  # the last two: of the responses that are not counted yet
    cdef long long _most_messages, _uncounted
    cdef Line *_lines
    cdef Part *_parts
    cdef uint8_t *_ids
    cdef uint8_t *_room                 # the request is written here
    cdef bytes _head
    cdef list _versions
    cdef dict _options
    cdef object _cluster, _snapshot
    cdef Py_buffer *_inbox              # behind a pointer, like the buffers of a RecordChunk
    cdef readonly Py_ssize_t held       # bytes in the inbox, from its beginning on

    def __cinit__(self):
        self._lines, self._parts, self._ids, self._room, self._inbox = NULL, NULL, NULL, NULL, NULL
        self.unsent = b""

    def __init__(self, owner, cluster, lent, asked, limits, *, int version, int correlation_id, int max_bytes,
                 long long max_messages, double soon_s, double quiet_since):
        cdef int place
        cdef bytes topic
        cdef Line *line
        cdef list lines = asked.lines
        self.owner, self._cluster, self._snapshot = owner, cluster, cluster.snapshot
        self._fd, self.held, self._head = lent.descriptor, lent.held, lent.head
        self.sent_at, self.overdue_at, self.heard_at, self.slowest = lent.sent_at, lent.overdue_at, lent.heard_at, lent.slowest
        self._version, self.correlation_id, self._most_bytes = version, correlation_id, max_bytes
        self._session, self.session_epoch, self.patient = asked.session_id, asked.session_epoch, asked.patient
        self._wait_ms, self._quiet_ms, self._quiet_after = limits.max_wait_ms, asked.quiet_wait_ms, asked.quiet_after
        self._least_bytes, self._isolation, self._most_messages = limits.min_bytes, limits.isolation_level, max_messages
        self._soon_s, self.quiet_since = soon_s, quiet_since
        self._options = {"read_committed": limits.isolation_level == 1, "check_crcs": limits.check_crcs}
        self._options["max_batch_bytes"] = limits.max_batch_bytes
        self._count = len(lines)
        ids = list(dict.fromkeys(line[2] for line in lines))
        self._topics = len(ids)
        self._lines = <Line *>calloc(self._count + 1, sizeof(Line))
        self._parts = <Part *>calloc(self._count + 1, sizeof(Part))
        self._ids = <uint8_t *>calloc(self._topics + 1, 16)
        self._room = <uint8_t *>calloc(
            HEAD_BYTES + len(self._head) + self._topics * TOPIC_BYTES + self._count * (PART_BYTES + 5), 1
        )
        if self._lines == NULL or self._parts == NULL or self._ids == NULL or self._room == NULL:
            raise MemoryError
        for place in range(self._topics):
            topic = ids[place]
            if len(topic) != 16:
                raise ValueError("a topic's id has 16 bytes")
            memcpy(self._ids + 16 * place, <const char *>topic, 16)
        self.queues, self._versions = [], []
        for place in range(self._count):
            queue, version, topic, number, leader_epoch, offset, last_epoch, most = lines[place]
            self.queues.append(queue)
            self._versions.append(version)
            line = &self._lines[place]
            line.number, line.leader_epoch, line.last_epoch, line.most_bytes = number, leader_epoch, last_epoch, most
            line.offset, line.position, line.topic, line.batch_bytes = offset, -1, ids.index(topic), queue.batch_bytes
        self._inbox = <Py_buffer *>calloc(1, sizeof(Py_buffer))
        if self._inbox == NULL:
            raise MemoryError
        PyObject_GetBuffer(lent.inbox, self._inbox, PyBUF_WRITABLE)

    def __dealloc__(self):
        if self._inbox != NULL:
            PyBuffer_Release(self._inbox)
            free(self._inbox)
        free(self._lines)
        free(self._parts)
        free(self._ids)
        free(self._room)

    def recall(self):
        """Let no thread take another response; then call :meth:`InlineFetch.wake` for one that waits."""
        self.recalled = True

    def places(self):
        """For each line the last offset and last epoch sent, in the request in flight or an earlier one."""
        return [(self._lines[place].offset, self._lines[place].last_epoch) for place in range(self._count)]

    # -- the request --------------------------------------------------------------------------------------------------

    cdef Py_ssize_t _write(self) noexcept:
        """Write the next request to ``_room``; return its size."""
        cdef uint8_t *at = self._room + 4
        cdef Line *line
        cdef int topic, place, named, topics = 0
        at = put32(put16(put16(at, 1), self._version), self.correlation_id)
        memcpy(at, PyBytes_AS_STRING(self._head), PyBytes_GET_SIZE(self._head))
        at += PyBytes_GET_SIZE(self._head)
        if self._version < 15:
            at = put32(at, -1)
        at = put32(put32(put32(at, self._quiet_ms if self.patient else self._wait_ms), self._least_bytes), self._most_bytes)
        at[0] = <uint8_t><int8_t>self._isolation
        at = put32(put32(at + 1, self._session), self.session_epoch)
        for topic in range(self._topics):
            topics += self._named(topic) > 0
        at = put_length(at, topics)
        for topic in range(self._topics):
            named = self._named(topic)
            if not named:
                continue
            memcpy(at, self._ids + 16 * topic, 16)
            at = put_length(at + 16, named)
            for place in range(self._count):
                line = &self._lines[place]
                if line.topic == topic and (line.moved or not self._session):
                    at = put64(put32(put32(at, line.number), line.leader_epoch), line.offset)
                    at = put32(put64(put32(at, line.last_epoch), -1), line.most_bytes)
                    at[0] = 0
                    at += 1
                    line.moved = False
            at[0] = 0
            at += 1
        at[0], at[1], at[2] = 1, 1, 0  # nothing forgotten, no rack, no tagged fields
        at += 3
        put32(self._room, <int32_t>(at - self._room - 4))
        return at - self._room

    cdef int _named(self, int topic) noexcept:
        # Without a session (the broker had no slot for another one) each request names all partitions.
        cdef int place, found = 0
        for place in range(self._count):
            found += self._lines[place].topic == topic and (self._lines[place].moved or not self._session)
        return found

    cdef Py_ssize_t _next_request(self, double now) noexcept:
        """Begin the next request; return its size."""
        cdef int place
        cdef bint moved = False
        for place in range(self._count):
            moved = moved or self._lines[place].moved
        self.patient = not moved and self._quiet_ms > self._wait_ms and now - self.quiet_since >= self._quiet_after
        self.correlation_id = 1 if self.correlation_id == 0x7FFFFFFF else self.correlation_id + 1
        if self._session:
            self.session_epoch = 1 if self.session_epoch == 0x7FFFFFFF else self.session_epoch + 1
        self.sent_at = now
        self.overdue_at = now + max(self._soon_s, 2.0 * self.slowest)
        self.overdue_at += 0.001 * (self._quiet_ms if self.patient else self._wait_ms)
        return self._write()

    cdef int _ask(self, double now) except -1:
        cdef Py_ssize_t size = self._next_request(now), sent
        sent = send(self._fd, self._room, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < size:  # the worker sends the rest, or handles the error
            self.recalled = True
            self.unsent = self._room[max(0, sent) : size]
        return 0

    # -- the answer ---------------------------------------------------------------------------------------------------

    cdef int _receive(self, double now, InlineFetch all) except -1:
        """Take the received bytes; after a whole plain response, send the next request."""
        cdef ssize_t got
        cdef Py_ssize_t size
        cdef uint8_t *inbox = <uint8_t *>self._inbox.buf
        while True:
            if self.held >= 4:
                size = big32(inbox)
                if size < LEAST_ANSWER or 4 + size > self._inbox.len or self.held > 4 + size:
                    self.recalled = True  # damaged, too long for this, or more than one response
                    return 0
                if self.held == 4 + size:
                    break
            got = recv(self._fd, inbox + self.held, self._inbox.len - self.held, MSG_DONTWAIT)
            if got <= 0:
                # The worker handles the end of the stream and errors.
                self.recalled = got == 0 or (errno != EAGAIN and errno != EINTR)
                return 0
            self.held += got
        try:
            if not self._take(inbox + 4, size, now, all):
                self.recalled = True
                return 0
        except BaseException:  # no memory: the received bytes are still in the inbox
            self.recalled = True
            raise
        self.held = 0
        self._ask(now)
        return 0

    cdef bint _take(self, const uint8_t *at, Py_ssize_t size, double now, InlineFetch all) except -1:
        """Take a response; False, without any change: it is not a plain one."""
        cdef int parts, i
        cdef Line *line
        cdef Part *part
        cdef list chunks
        if self._cluster.snapshot is not self._snapshot:
            return False
        parts = self._parse(at, at + size)
        if parts < 0:
            return False
        chunks = []
        for i in range(parts):
            part = &self._parts[i]
            chunk = None
            if part.size > 0:
                line = &self._lines[part.line]
                queue = self.queues[part.line]
                chunk = RecordChunk(
                    queue.context, PyBytes_FromStringAndSize(<const char *>part.records, part.size), line.offset, **self._options
                )
                if chunk.corrupt or chunk.needs_bytes or 0 <= part.high < <int64_t>chunk.next_fetch_offset:
                    return False
                if <int64_t>chunk.record_count >= self._most_messages:
                    return False
            chunks.append(chunk)
        if self.recalled:  # meanwhile: making a chunk releases the GIL
            return False
        for i in range(parts):
            self._note(&self._parts[i], chunks[i], now, all)
        self.rounds += 1
        self._uncounted += 1
        self._took += now - self.sent_at
        self._longest = max(self._longest, now - self.sent_at)
        self.slowest = max(self.slowest, now - self.sent_at)
        self.heard_at = now
        return True

    cdef int _note(self, Part *part, chunk, double now, InlineFetch all) except -1:
        cdef Line *line = &self._lines[part.line]
        cdef bint slow
        line.high, line.stable, line.start, line.touched = part.high, part.stable, part.start, True
        all.touched = True
        if chunk is None or (not chunk.record_count and chunk.next_fetch_offset == line.offset):
            return 0
        slow = chunk.last_leader_epoch != line.last_epoch or len(chunk.epochs) != 1
        line.offset, line.last_epoch = chunk.next_fetch_offset, chunk.last_leader_epoch
        line.batch_bytes = max(<int64_t>chunk.batch_bytes, line.batch_bytes * 7 // 8)
        line.moved = True
        self.quiet_since = now
        all.ready.append(_Found(self, part.line, chunk, slow))
        return 0

    cdef int _parse(self, const uint8_t *at, const uint8_t *stop) noexcept:
        """Read the response's partitions into ``_parts``; return their number, -1: it is not plain."""
        cdef Py_ssize_t topics, number, size
        cdef int found = 0, topic, line
        cdef Part *part
        if <int32_t>big32(at) != self.correlation_id or at[4] or big32(at + 5) or at[9] or at[10]:
            return -1
        if <int32_t>big32(at + 11) != self._session:
            return -1
        at += 15
        topics = get_length(&at, stop)
        if topics < 0:
            return -1
        while topics > 0:
            topics -= 1
            if stop - at < 17:
                return -1
            for topic in range(self._topics):
                if not memcmp(at, self._ids + 16 * topic, 16):
                    break
            else:
                return -1
            at += 16
            number = get_length(&at, stop)
            if number < 0:
                return -1
            while number > 0:
                number -= 1
                if stop - at < PART_HEAD or found >= self._count:
                    return -1
                for line in range(self._count):
                    if self._lines[line].topic == topic and self._lines[line].number == <int32_t>big32(at):
                        break
                else:
                    return -1
                part = &self._parts[found]
                found += 1
                part.line = line
                if at[4] or at[5] or at[30] > 1 or <int32_t>big32(at + 31) != -1:  # errors, aborted ones, a follower
                    return -1
                part.high, part.stable, part.start = big64(at + 6), big64(at + 14), big64(at + 22)
                at += 35
                size = get_length(&at, stop)
                if size < -1 or stop - at <= max(0, size):
                    return -1
                part.records, part.size = at, max(0, size)
                at += part.size
                if at[0]:  # tagged fields
                    return -1
                at += 1
            if at >= stop or at[0]:
                return -1
            at += 1
        return found if stop - at == 1 and not at[0] else -1

    def take_times(self):
        """Return how many responses came since the last call, how long they took in all, and at most (seconds)."""
        found = self._uncounted, self._took, self._longest
        self._uncounted, self._took, self._longest = 0, 0.0, 0.0
        return found

    # -- for tests ----------------------------------------------------------------------------------------------------

    def feed(self, InlineFetch all not None, bytes frame not None, double now):
        """Take ``frame`` as from the socket; return the next request, None: the worker has to handle the frame."""
        cdef uint8_t *inbox = <uint8_t *>self._inbox.buf
        cdef const char *data = frame
        if 4 + len(frame) > self._inbox.len or len(frame) < LEAST_ANSWER:
            self.recalled = True
            return None
        put32(inbox, <int32_t>len(frame))
        memcpy(inbox + 4, data, len(frame))
        self.held = 4 + len(frame)
        if not self._take(inbox + 4, len(frame), now, all):
            self.recalled = True
            return None
        self.held = 0
        cdef Py_ssize_t size = self._next_request(now)
        return self._room[:size]


cdef class _Found:
    """A received chunk."""

    cdef Wire wire
    cdef int line
    cdef object chunk
    cdef bint slow            # it has to go through the buffer

    def __cinit__(self, Wire wire, int line, chunk, bint slow):
        self.wire, self.line, self.chunk, self.slow = wire, line, chunk, slow


cdef class InlineFetch(Source):
    """The wires of one consumer, and their received chunks. The consumer's lock guards it, but where a method says so.

    ``wakeup_fd.read_fd`` is a descriptor that is readable after a write to ``wakeup_fd.write_fd``.
    """

    cdef readonly tuple wires
    cdef readonly bint touched      # received chunks that the consumer's objects do not know of
    cdef readonly bint moved_on     # the lane has used up the chunk that it was attached to
    cdef readonly bint inside       # a thread waits
    cdef readonly double waited     # for so many seconds, in all
    cdef list ready                 # of _Found, the oldest first
    cdef _Found _current            # the lane reads it
    cdef object _wakeup_fd
    cdef int _read_fd, _write_fd
    cdef bint _rung, _written, _armed

    def __init__(self, wakeup_fd not None):
        self.wires, self.ready, self._wakeup_fd = (), [], wakeup_fd
        self._read_fd, self._write_fd = wakeup_fd.read_fd, wakeup_fd.write_fd

    @property
    def full(self):
        """True if no further wire is possible."""
        return len(self.wires) >= MOST_WIRES

    def add(self, *args, **more):
        """Make a new :class:`Wire`, from which consuming threads may receive."""
        wire = Wire(*args, **more)
        self.wires += (wire,)
        return wire

    def remove(self, Wire wire not None):
        """Remove ``wire``, which its worker has taken back."""
        self.wires = tuple([each for each in self.wires if each is not wire])

    @property
    def usable(self):
        """True if there is a wire to receive from."""
        cdef Wire wire
        for wire in self.wires:
            if not wire.recalled:
                return True
        return False

    @property
    def recalled(self):
        """True if a worker waits for its wire."""
        cdef Wire wire
        for wire in self.wires:
            if wire.recalled:
                return True
        return False

    # -- waking -------------------------------------------------------------------------------------------------------

    cpdef wake(self):
        """Make a thread that receives, or is about to, take the lock first. Needs no lock."""
        cdef uint64_t one = 1
        self._rung = True
        if (self.inside or self._armed) and not self._written:
            self._written = True
            write(self._write_fd, &one, 8)

    def begin(self):
        """Note that the calling thread has checked everything; it releases the lock and calls :meth:`wait`."""
        self.heard()
        self._armed = True

    cpdef heard(self):
        """Note that the calling thread checks everything now."""
        cdef char data[64]
        self._rung = False
        if self._written and not self.inside:
            self._written = False
            read(self._read_fd, data, sizeof(data))

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, double seconds):
        """Receive until a chunk comes, :meth:`wake`, or for ``seconds``; signal handlers run meanwhile.

        After :meth:`begin`, without the lock.
        """
        self._armed = False
        if not self.inside:
            self._wait(seconds)

    cdef int _wait(self, double seconds) except -1:
        # Signal handlers run between two rounds, when this thread has left: they may use the consumer.
        cdef double until = precise_seconds() + seconds
        cdef bint again = True
        cdef Wire wire
        while again and not self.ready and not self._rung and not self.inside:
            self.inside = True
            try:
                again = self._receive_once(until)
            finally:
                self.inside = False
                for wire in self.wires:
                    wire.inside = False
            PyErr_CheckSignals()
        return 0

    cdef bint _receive_once(self, double until) except -1:
        """Wait for one change and handle it; False: the slow path has to look."""
        cdef pollfd fds[MOST_WIRES + 1]
        cdef double now = precise_seconds(), began = now
        cdef char data[64]
        cdef int count = 0, found, place
        cdef bint again = True
        cdef Wire wire
        used = []
        for wire in self.wires:
            wire.inside = not wire.recalled
            if wire.inside:
                used.append(wire)
                count += 1
                fds[count].fd, fds[count].events, fds[count].revents = wire._fd, POLLIN, 0
                until = min(until, wire.overdue_at)
        if not count:
            return False
        fds[0].fd, fds[0].events, fds[0].revents = self._read_fd, POLLIN, 0
        found = <int>min(1000.0 * max(0.0, until - now) + 0.999, 60000.0)
        with nogil:
            found = poll(fds, count + 1, found)
        now = precise_seconds()
        self.waited += now - began
        for place in range(count):
            wire = used[place]
            if not wire.recalled and found > 0 and fds[place + 1].revents:
                wire._receive(now, self)
            elif now >= wire.overdue_at:
                wire.recalled = True
            again = again and not wire.recalled
        if found > 0 and fds[0].revents:
            self._written = False
            read(self._read_fd, data, sizeof(data))
            return False
        return again and found != 0

    cdef bint is_open(self):
        """True if a thread may wait for a chunk: a worker has lent its connection, and no wake-up is due."""
        return not self._rung and not self.inside and not self._armed and len(self.wires) > 0

    cdef object peek(self, double seconds):
        """Return the next chunk for the lane; None: use the slow path. The GIL guards it."""
        cdef _Found found
        if self._current is not None:
            self._current.wire._lines[self._current.line].position = self._current.chunk.position
            self._current = None
        self.moved_on = self.touched = True
        if not self.ready:
            self._wait(seconds)
            if self._rung or not self.ready:
                return None
        found = self.ready[0]
        return None if found.slow else found.chunk

    cdef int take(self) except -1:
        """Note that the lane reads the chunk from :meth:`peek`."""
        self._current = self.ready.pop(0)
        return 0

    # -- settling -----------------------------------------------------------------------------------------------------

    def report(self):
        """For each moved partition its queue, version, fetch offset, last epoch, largest batch, high watermark,
        last stable offset, log start and position (-1: unchanged)."""
        cdef Wire wire
        cdef Line *line
        cdef int place
        rows = []
        for wire in self.wires:
            for place in range(wire._count):
                line = &wire._lines[place]
                if line.touched or line.position >= 0:
                    rows.append((
                        wire.queues[place], wire._versions[place], line.offset, line.last_epoch, line.batch_bytes,
                        line.high, line.stable, line.start, line.position,
                    ))
        return rows

    @property
    def current(self):
        """The queue and the chunk that the lane reads; None: the chunk that it was attached to, or none."""
        return None if self._current is None else (self._current.wire.queues[self._current.line], self._current.chunk)

    def pop(self):
        """Take out the next chunk for the buffer, with its queue and version; None: there is none."""
        cdef _Found found
        if not self.ready:
            return None
        found = self.ready.pop(0)
        return found.wire.queues[found.line], found.wire._versions[found.line], found.chunk

    def settled(self):
        """Note that the consumer's objects are updated."""
        cdef Wire wire
        cdef int place
        for wire in self.wires:
            for place in range(wire._count):
                wire._lines[place].touched = False
                wire._lines[place].position = -1
        self._current = None
        self.touched = self.moved_on = False

    def clear(self):
        """Drop the received chunks, to be fetched again, and give all wires back to their workers."""
        cdef Wire wire
        self.ready.clear()
        self.settled()
        for wire in self.wires:
            wire.recalled = True
        self.wake()
