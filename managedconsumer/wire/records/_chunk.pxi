@cython.final
cdef class RecordChunk:
    """The records of one fetch response for one partition, see ``managedconsumer.wire.records``."""

    cdef readonly PartitionContext context
    cdef public bint active
    cdef readonly bint exhausted
    cdef readonly bint corrupt
    cdef readonly long long fetch_offset
    cdef readonly long long position
    cdef readonly long long next_fetch_offset
    cdef readonly long long record_count
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t needs_bytes
    cdef readonly Py_ssize_t batch_bytes
    cdef readonly Py_ssize_t unpack_bytes
    cdef readonly int last_leader_epoch
    cdef readonly list epochs

    cdef Buffers *_buffers
    cdef bint _has_data
    cdef Walk _walk
    cdef Py_ssize_t _index        # of the batch that is open, or was last
    cdef Batch *_batch            # the open one, or NULL
    cdef Cursor _cursor           # in the open batch's records
    cdef bint _has_payload
    cdef object _scratch
    cdef object _failure          # why the open batch cannot be read on, or None
    cdef bint _raised             # and the user knows
    cdef list _ready              # messages of formats 0 and 1; the next one is the last
    cdef list _aborts             # (producer id, first offset), latest first
    cdef list _aborted            # those of them that have not begun yet
    cdef set _aborting
    cdef Py_ssize_t _skipped      # batches up to this one were skipped or are sound
    cdef bint _made               # __init__ has run
    cdef bint _torn               # the cursor is behind a record that became no message
    cdef bint _read_committed
    cdef int64_t _max_batch_bytes
    cdef object _beside           # decompresses what is large, or None
    cdef int64_t _unpacked        # bytes of all batches opened so far

    def __cinit__(self):
        self._has_data = self._has_payload = self._made = self._torn = False
        self._buffers = <Buffers *>malloc(sizeof(Buffers))
        if self._buffers == NULL:
            raise MemoryError
        self._walk.batches = NULL
        self._walk.used = self._walk.room = self._walk.needs_bytes = 0
        self._walk.expected = 0
        self._batch = NULL
        self._cursor.left = 0

    def __init__(
        self,
        PartitionContext context not None,
        data,
        long long fetch_offset,
        *,
        aborted=(),
        bint read_committed=False,
        bint check_crcs=True,
        long long max_batch_bytes=compression.DEFAULT_MAX_BYTES,
        beside=None,
    ):
        cdef int failed
        if self._made:
            raise TypeError("a RecordChunk cannot be initialised twice")
        self._made = True
        self.context = context
        self.active = True
        self.fetch_offset = self.position = self.next_fetch_offset = fetch_offset
        self.last_leader_epoch = -1
        self.epochs = []
        self._max_batch_bytes = max_batch_bytes
        self._beside = beside
        self._read_committed = read_committed
        self._aborts = sorted(aborted, key=_first_offset, reverse=True) if read_committed and aborted else []
        self._aborted = list(self._aborts)
        self._aborting = set()
        self._ready = []
        self._index = self._skipped = -1
        PyObject_GetBuffer(data, &self._buffers.data, PyBUF_SIMPLE)
        self._has_data = True
        self.nbytes = self._buffers.data.len
        with nogil:
            failed = walk_batches(&self._walk, <uint8_t *>self._buffers.data.buf, self._buffers.data.len, check_crcs, max_batch_bytes)
        if failed:
            raise MemoryError
        self.needs_bytes = self._walk.needs_bytes
        self._count()

    cdef void _count(self):
        cdef Py_ssize_t i
        cdef Batch *batch
        for i in range(self._walk.used):
            batch = &self._walk.batches[i]
            self.batch_bytes = max(self.batch_bytes, batch.end - batch.start)
            if batch.bad != SOUND:
                self.corrupt = True
                continue
            self.next_fetch_offset = max(self.next_fetch_offset, batch.last_offset + 1)
            if batch.attributes & CODEC_MASK:
                self.unpack_bytes = max(self.unpack_bytes, UNPACKS_TO * (batch.end - batch.start))
            if batch.magic >= 2:
                if batch.leader_epoch != self.last_leader_epoch:
                    self.epochs.append((batch.base_offset, batch.leader_epoch))
                self.last_leader_epoch = batch.leader_epoch
                if batch.attributes & CONTROL:
                    continue
            self.record_count += batch.count

    def __dealloc__(self):
        self._close_payload()
        self._close_data()
        free(self._buffers)

    cdef void _close_payload(self):
        if self._has_payload:
            self._has_payload = False
            PyBuffer_Release(&self._buffers.payload)

    cdef void _close_data(self):
        if self._has_data:
            self._has_data = False
            PyBuffer_Release(&self._buffers.data)
        free(self._walk.batches)
        self._walk.batches = NULL
        self._walk.used = 0

    def __iter__(self):
        return self

    def __next__(self):
        taken = self.take(1)
        if not taken:
            raise StopIteration
        return taken[0]

    cpdef list take(self, Py_ssize_t n, stop_offset=None, max_bytes=None):
        """Up to ``n`` messages, see ``managedconsumer.wire.records``."""
        if self._torn:
            self.rewind(self.position)
        cdef list taken = []
        cdef int64_t position = self.position
        cdef int64_t stop = INT64_MAX if stop_offset is None else stop_offset
        cdef int64_t limit = INT64_MAX if max_bytes is None else self._unpacked + <int64_t>max_bytes
        try:
            self._take(taken, n, stop, limit)
        except CorruptRecordError:
            raise  # nothing was taken before it
        except (MissingPackageError, MemoryError):
            # What was read is delivered; the next call meets the same, or gets on.
            self.rewind(self.position)
            if not taken:
                raise
        except BaseException:
            self.rewind(position)
            raise
        return taken

    cdef int _take(self, list taken, Py_ssize_t n, int64_t stop, int64_t limit) except -1:
        cdef View view
        cdef Outcome outcome
        cdef Cursor before
        cdef Message message
        while n > 0 and self.active:
            if self._cursor.left > 0:
                before = self._cursor
                outcome = read_record(&self._cursor, &view)
                if outcome == GOOD:
                    if view.offset >= stop:
                        self._cursor = before
                        self.position = max(self.position, stop)
                        break
                    taken.append(self._message(&view))
                    self.position = view.offset + 1
                    n -= 1
                elif outcome != BELOW:
                    self._note_damage(outcome, &view)
            elif self._ready:
                message = self._ready[len(self._ready) - 1]
                if message.offset >= stop:
                    self.position = max(self.position, stop)
                    break
                taken.append(self._ready.pop())
                self.position = message.offset + 1
                n -= 1
            elif taken and (self._failure is not None or self._unpacked >= limit or self._left_over()):
                break
            elif not self._step():
                break
        return 0

    def again(self, long long offset):
        """A fresh chunk over the same bytes, see ``managedconsumer.wire.records``."""
        if not self._has_data:
            return None
        more = {"read_committed": self._read_committed, "max_batch_bytes": self._max_batch_bytes, "beside": self._beside}
        data = <object>self._buffers.data.obj
        return RecordChunk(self.context, data, offset, aborted=self._aborts, check_crcs=self.corrupt, **more)

    def rewind(self, long long position):
        """Go back to ``position``, see ``managedconsumer.wire.records``."""
        if self.exhausted:
            self.active = False  # its bytes are gone
        if self._aborts:
            self._aborted, self._aborting = list(self._aborts), set()
        self.position = position
        self._leave_batch()
        self._index = -1
        self._raised = self._torn = False
        self._ready.clear()

    cdef void _leave_batch(self):
        self._batch = NULL
        self._cursor.left = 0
        self._failure = None
        self._close_payload()

    def to_columns(self, pa, schema, stop_offset, max_bytes):
        """The next messages as a ``pyarrow.RecordBatch``, see ``wire.arrow``.

        None where only messages can say what comes: formats 0 and 1, and header names that are not ASCII.
        """
        return build_columns(self, pa, schema, INT64_MAX if stop_offset is None else stop_offset, max_bytes)

    cdef inline Message _message(self, View *view):
        cdef Message message
        self._torn = True  # until it is made: there may be too little memory
        message = Message.__new__(Message)
        message._value = to_bytes(view.value, view.value_size)
        message._key = to_bytes(view.key, view.key_size)
        if view.headers != NULL:
            message._headers = PyBytes_FromStringAndSize(<const char *>view.headers, view.headers_size)
        self._torn = False
        message._context = self.context
        message.offset = view.offset
        message.timestamp = view.timestamp
        message.leader_epoch = self._batch.leader_epoch
        message.timestamp_type = self._cursor.appended
        message.protocol_version = 2
        return message

    def skip_corrupt(self):
        """Move past the batch that has raised CorruptRecordError; the new position.  Else it does nothing."""
        if not self._raised or self._batch == NULL:
            return self.position
        self._raised = False
        self.position = max(self.position, after_corrupt(self, self._batch))
        self.next_fetch_offset = max(self.next_fetch_offset, self.position)
        self._skipped = self._index
        self._leave_batch()
        return self.position

    # --- opening: everything below runs once per batch ---

    cdef void _note_damage(self, Outcome outcome, View *view):
        cdef int number = self._batch.count - self._cursor.left + 1
        if outcome == MISPLACED:
            self._failure = fmt.bad_offset(number, self._batch.count, view.offset)
        else:
            self._failure = fmt.bad_record(number, self._batch.count)
        self._cursor.left = 0

    cdef bint _left_over(self):
        """Whether the open batch goes on after its last record; then that is the failure."""
        if self._batch == NULL or self._cursor.place == self._cursor.end or self._failure is not None:
            return False
        self._failure = fmt.left_over(self._cursor.end - self._cursor.place, self._batch.count)
        return True

    cdef bint _step(self) except -1:
        """Leave the open batch, which was read to its end, and open the next; False at the end of the chunk."""
        if self._failure is not None or self._left_over():
            raise self._corrupt_error()
        if self._batch != NULL:
            self._pass_batch()
        if self._index + 1 >= self._walk.used:
            self._finish()
            return False
        self._index += 1
        if self._index > self._skipped or self._walk.batches[self._index].bad == SOUND:
            self._open(&self._walk.batches[self._index])
        return True

    cdef void _pass_batch(self):
        """Leave the open batch, which was read to its end."""
        self.position = max(self.position, self._batch.last_offset + 1)
        self._batch = NULL
        self._close_payload()

    cdef bint _next_is_plain(self):
        """True if there is a next batch, and to open it needs no work and runs no Python code."""
        cdef Batch *batch
        if self._read_committed or self._index + 1 >= self._walk.used:
            return False
        batch = &self._walk.batches[self._index + 1]
        if batch.bad != SOUND or batch.magic < 2 or batch.attributes & (CODEC_MASK | CONTROL) or not batch.count:
            return False
        return batch.last_offset >= self.position

    cdef bint _at_plain_end(self):
        """True at the end of an open batch that runs no Python code when it is left."""
        return (
            self._batch != NULL
            and self._failure is None
            and self._cursor.place == self._cursor.end
            and not self._has_payload
            and not self._ready
        )

    cdef bint _step_plain(self):
        """``_step`` to a batch that needs no work and runs no Python code; False: not so."""
        if not self._at_plain_end() or not self._next_is_plain():
            return False
        self._pass_batch()
        self._index += 1
        self._open(&self._walk.batches[self._index])
        return self._cursor.left > 0

    cdef bint _used_up(self):
        """True at the end of the last batch, where ``_end`` runs no Python code."""
        return (
            self._has_data
            and self._index + 1 == self._walk.used
            and self._cursor.left == 0
            and self._scratch is None
            and not self._torn
            and self._at_plain_end()
        )

    cdef void _end(self):
        """``_step`` where the chunk is ``_used_up``."""
        self._pass_batch()
        self._finish()

    cdef bint _begin(self):
        """Open the first batch, if that needs no work and runs no Python code."""
        if not self.active or self.corrupt or self._index >= 0 or not self._next_is_plain():
            return False
        self._index = 0
        self._open(&self._walk.batches[0])
        return True

    cdef void _finish(self):
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            compression.give_scratch(scratch)
        # Nothing that runs Python code comes after this.
        self.position = max(self.position, self.next_fetch_offset)
        self.exhausted = True
        self._close_data()

    cdef object _corrupt_error(self):
        cdef int64_t offset = max(self.position, self._batch.base_offset)
        self._raised = True
        return CorruptRecordError(self.context.topic, self.context.partition_id, offset, self._failure)

    cdef int _open(self, Batch *batch) except -1:
        """Get a batch ready to be read, or pass it over (a marker, an aborted transaction, nothing new in it)."""
        self._batch = batch
        self._cursor.left = 0
        self._cursor.place = self._cursor.end = NULL
        if batch.bad != SOUND:
            self._failure = reason_of(batch)
            return 0
        try:
            if self._read_committed and is_aborted(self, batch):
                return 0
            if (batch.magic >= 2 and batch.attributes & CONTROL) or batch.last_offset < self.position or not batch.count:
                return 0
            if batch.magic < 2:
                open_legacy(self, batch)
                return 0
            self._unpack(batch)
        except (compression.DecompressionError, BadMessageError) as error:
            self._failure = str(error)
            return 0
        except BaseException:
            self._batch = NULL
            self._index -= 1  # such as a package that is missing: the next call tries again
            raise
        if <int64_t>batch.count * MIN_RECORD_BYTES > self._cursor.end - self._cursor.place:
            self._failure = fmt.bad_count(batch.count, self._cursor.end - self._cursor.place)
            return 0
        self._unpacked += self._cursor.end - self._cursor.place
        self._cursor.base_offset = batch.base_offset
        self._cursor.last_offset = batch.last_offset
        self._cursor.appended = batch.attributes & LOG_APPEND_TIME != 0
        self._cursor.timestamp = batch.max_timestamp if self._cursor.appended else batch.base_timestamp
        self._cursor.previous = batch.base_offset - 1
        self._cursor.start = self.position
        self._cursor.left = batch.count
        return 0

    cdef int _unpack(self, Batch *batch) except -1:
        """Point the cursor at the batch's records, decompressed if need be."""
        cdef uint8_t *body = <uint8_t *>self._buffers.data.buf + batch.start + HEADER_BYTES
        cdef int codec = batch.attributes & CODEC_MASK
        if codec == 0:
            self._cursor.place = body
            self._cursor.end = <uint8_t *>self._buffers.data.buf + batch.end
            return 0
        if self._scratch is None:
            self._scratch = compression.take_scratch()
        unpacked = compression.decompress(codec, self._slice(batch), self._max_batch_bytes, self._scratch, self._beside)
        PyObject_GetBuffer(unpacked, &self._buffers.payload, PyBUF_SIMPLE)
        self._has_payload = True
        self.unpack_bytes = max(self.unpack_bytes, self._buffers.payload.len)
        self._cursor.place = <uint8_t *>self._buffers.payload.buf
        self._cursor.end = self._cursor.place + self._buffers.payload.len
        return 0

    cdef object _slice(self, Batch *batch):
        """Return the batch's bytes behind the header (format 2), or all of them."""
        cdef Py_ssize_t start = batch.start + (HEADER_BYTES if batch.magic >= 2 else 0)
        return memoryview(<object>self._buffers.data.obj).cast("B")[start:batch.end]
