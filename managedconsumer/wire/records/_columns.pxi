cdef class _BinaryRoom:
    """The three buffers of a column of bytes."""

    cdef _GrowingBuffer offsets, data, valid

    def __cinit__(self, pa):
        self.offsets = _GrowingBuffer(pa, 0)
        self.data = _GrowingBuffer(pa, 0)
        self.valid = _GrowingBuffer(pa, 0)

    cdef int hold(self, Binary *column, int64_t rows, int64_t size, double ahead) except -1:
        """Room for ``rows`` more fields of ``size`` bytes in all; ``ahead``: how much more of the same is to come."""
        cdef bint first = column.offsets == NULL
        self.offsets.hold(room(column.rows + rows + 1, ahead if first else 1) * 4)
        self.data.hold(room(column.used + size, ahead if first else 1))
        hold_valid(self.valid, column.rows, rows, ahead if first else 1)
        column.room = self.data.size
        column.offsets = <int32_t *>self.offsets.start
        column.data = self.data.start
        column.valid = self.valid.start
        if first:
            column.offsets[0] = 0
        return 0

    cdef object done(self, pa, kind, Binary *column):
        """The finished array."""
        valid = self.valid.done((column.rows + 7) // 8) if column.nulls else None
        buffers = [valid, self.offsets.done((column.rows + 1) * 4), self.data.done(column.used)]
        return pa.Array.from_buffers(kind, column.rows, buffers, column.nulls)


cdef int64_t room(int64_t needed, double ahead):
    """Return how much memory to allocate at once when ``needed`` is the first of ``ahead`` equal parts."""
    return <int64_t>(needed * ahead) if ahead > 1 else needed


cdef int hold_valid(_GrowingBuffer valid, int64_t before, int64_t more, double ahead) except -1:
    """Room for the bits of ``more`` rows, set until a null clears them."""
    cdef int64_t old = (before + 7) // 8, new = (before + more + 7) // 8
    valid.hold(room(new, ahead))
    memset(valid.start + old, 0xFF, new - old)
    return 0


cdef class _Builder:
    """The columns of one record batch while it grows, batch of Kafka's by batch."""

    cdef object pa, schema
    cdef Columns columns
    cdef _BinaryRoom key, value, names, contents
    cdef _GrowingBuffer offsets, timestamps, types, lists, lists_valid
    cdef int type                  # of all rows so far, as long as there is no room for types
    cdef int64_t typed             # rows whose type is known

    def __cinit__(self, pa, schema):
        self.pa, self.schema = pa, schema
        memset(&self.columns, 0, sizeof(Columns))
        wanted = set(schema.names)
        self.key = _BinaryRoom(pa) if "key" in wanted else None
        self.value = _BinaryRoom(pa) if "value" in wanted else None
        self.offsets = _GrowingBuffer(pa, 0) if "offset" in wanted else None
        self.timestamps = _GrowingBuffer(pa, 0) if "timestamp" in wanted else None
        self.columns.wants_headers = "headers" in wanted

    cdef int hold(self, Count *count, double ahead) except -1:
        """Room for as many records as were counted; ``ahead``: how much more of the same is to come."""
        cdef Columns *to = &self.columns
        cdef int64_t rows = count.rows
        cdef int64_t after = to.rows + rows
        if to.rows:
            ahead = 1
        if self.key is not None:
            self.key.hold(&to.key, rows, count.key_bytes, ahead)
        if self.value is not None:
            self.value.hold(&to.value, rows, count.value_bytes, ahead)
        if self.offsets is not None:
            self.offsets.hold(room(after, ahead) * 8)
            to.offsets = <int64_t *>self.offsets.start
        if self.timestamps is not None:
            self.timestamps.hold(room(after, ahead) * 8)
            to.timestamps = <int64_t *>self.timestamps.start
        if self.lists is not None:
            self.names.hold(&to.names, count.headers, count.name_bytes, ahead)
            self.contents.hold(&to.contents, count.headers, count.content_bytes, ahead)
            self.lists.hold(room(after + 1, ahead) * 4)
            to.lists = <int32_t *>self.lists.start
            hold_valid(self.lists_valid, to.rows, rows, ahead)
            to.lists_valid = self.lists_valid.start
        return 0

    cdef Ending add(self, Cursor *cursor, Outcome *outcome, View *view, int64_t stop, int64_t budget, double ahead) except *:
        """Add records of the open batch until one of the limits is met; ``ahead`` as in ``hold``."""
        cdef Columns *to = &self.columns
        cdef Count count
        cdef Ending ending = NO_KEY_ROOM
        memset(&count, 0, sizeof(Count))
        while self.lists is None and ending == NO_KEY_ROOM:
            # No record has more bytes in its value than in all, so one pass is enough.
            count.rows = cursor.left
            count.value_bytes = count.bytes = cursor.end - cursor.place
            self.hold(&count, min(ahead, <double>budget / <double>count.bytes))
            with nogil:
                ending = copy_records(cursor, to, outcome, view, stop, budget, INT64_MAX)
            count.key_bytes = min(view.key_size * <int64_t>cursor.left, cursor.end - cursor.place)
        if ending == FIRST_HEADERS:
            self.begin_headers()
        if self.lists is not None:
            ending = self.add_with_headers(cursor, outcome, view, stop, budget, ahead)
        if self.typed < to.rows:
            self.note_type(cursor.appended)
        return ending

    cdef Ending add_with_headers(self, Cursor *cursor, Outcome *outcome, View *view, int64_t stop, int64_t budget, double ahead) except *:
        """``add`` in two passes, of which the first counts."""
        cdef Columns *to = &self.columns
        cdef Cursor before = cursor[0]
        cdef Count count
        cdef Ending ending
        cdef Outcome copied
        cdef View last
        memset(&count, 0, sizeof(Count))
        with nogil:
            ending = count_records(cursor, &count, outcome, view, stop, budget - to.bytes, to.rows == 0)
        if count.rows:
            self.hold(&count, min(ahead, <double>budget / <double>count.bytes))
            with nogil:
                # Why the reading ended is what the first pass has found: this one stays before it.
                copy_records(&before, to, &copied, &last, stop, INT64_MAX, count.rows)
        return ending

    cdef int begin_headers(self) except -1:
        """The first headers have come: the rows so far have none."""
        cdef Columns *to = &self.columns
        cdef int64_t rows = to.rows
        self.names, self.contents = _BinaryRoom(self.pa), _BinaryRoom(self.pa)
        self.lists, self.lists_valid = _GrowingBuffer(self.pa, (rows + 1) * 4), _GrowingBuffer(self.pa, (rows + 8) // 8)
        self.names.hold(&to.names, 0, 0, 1)
        self.contents.hold(&to.contents, 0, 0, 1)
        memset(self.lists.start, 0, (rows + 1) * 4)
        memset(self.lists_valid.start, 0, rows >> 3)
        self.lists_valid.start[rows >> 3] = <uint8_t>(0xFF << (rows & 7))
        to.lists, to.lists_valid = <int32_t *>self.lists.start, self.lists_valid.start
        to.headless = rows
        return 0

    cdef int note_type(self, int type) except -1:
        """The rows since the last call have this type of timestamp.  It hardly ever changes, so there is no column yet."""
        cdef int64_t row
        cdef int32_t *types
        if not self.typed:
            self.type = type
        if self.types is None and type != self.type:
            self.types = _GrowingBuffer(self.pa, self.columns.rows * 4)
            types = <int32_t *>self.types.start
            for row in range(self.typed):
                types[row] = self.type
        if self.types is not None:
            self.types.hold(self.columns.rows * 4)
            types = <int32_t *>self.types.start
            for row in range(self.typed, self.columns.rows):
                types[row] = type
        self.typed = self.columns.rows
        return 0

    cdef object _headers(self, kind):
        cdef Columns *to = &self.columns
        pair = kind.value_type
        names = self.names.done(self.pa, pair.field("key").type, &to.names)
        contents = self.contents.done(self.pa, pair.field("value").type, &to.contents)
        items = self.pa.Array.from_buffers(pair, to.names.rows, [None], 0, children=[names, contents])
        valid = self.lists_valid.done((to.rows + 7) // 8) if to.headless else None
        buffers = [valid, self.lists.done((to.rows + 1) * 4)]
        return self.pa.Array.from_buffers(kind, to.rows, buffers, to.headless, children=[items])

    cdef object _column(self, field, PartitionContext context):
        cdef Columns *to = &self.columns
        name, kind = field.name, field.type
        if name == "key":
            return self.key.done(self.pa, kind, &to.key)
        if name == "value":
            return self.value.done(self.pa, kind, &to.value)
        if name == "headers":
            return constant(None, kind, to.rows) if self.lists is None else self._headers(kind)
        if name == "topic":
            return constant(context.topic, kind, to.rows)
        if name == "partition":
            return constant(context.partition_id, kind, to.rows)
        if name == "timestampType":
            if self.types is None:
                return constant(self.type, kind, to.rows)
            data = self.types.done(to.rows * 4)
        else:
            data = (self.offsets if name == "offset" else self.timestamps).done(to.rows * 8)
        return self.pa.Array.from_buffers(kind, to.rows, [None, data], 0)

    cdef object done(self, PartitionContext context):
        """The record batch."""
        cdef Count none
        if not self.columns.rows:
            memset(&none, 0, sizeof(Count))
            self.hold(&none, 1)  # even without rows there is a first offset
        columns = [self._column(field, context) for field in self.schema]
        return self.pa.RecordBatch.from_arrays(columns, schema=self.schema)


cdef object build_columns(RecordChunk chunk, pa, schema, int64_t stop, int64_t budget):
    """See ``RecordChunk.to_columns``.  If it fails, the chunk is where it was."""
    cdef _Builder builder = _Builder(pa, schema)
    cdef int64_t position = chunk.position
    cdef Ending ending
    if chunk._torn:
        chunk.rewind(position)
    try:
        ending = gather(chunk, builder, stop, budget)
        if not builder.columns.rows and (chunk._ready or ending == ODD_NAME):
            return None
        return builder.done(chunk.context)
    except CorruptRecordError:
        raise
    except BaseException:
        chunk.rewind(position)
        raise


cdef double bytes_ahead(RecordChunk chunk):
    """How many times the bytes of the open batch are still to come, itself included."""
    cdef double rest = chunk._walk.batches[chunk._walk.used - 1].end - chunk._batch.start
    return 1.02 * rest / <double>(chunk._batch.end - chunk._batch.start)


cdef Ending gather(RecordChunk chunk, _Builder builder, int64_t stop, int64_t budget) except *:
    """Add records to the columns until one of the limits is met."""
    cdef Columns *columns = &builder.columns
    cdef Outcome outcome = GOOD
    cdef View view
    cdef Ending ending = AT_END
    cdef int64_t rows
    while chunk.active and not chunk._ready:
        if chunk._cursor.left <= 0:
            if columns.rows and (chunk._failure is not None or columns.bytes >= budget or chunk._left_over()):
                break
            try:
                if not chunk._step():
                    break
            except (MissingPackageError, MemoryError):
                if columns.rows:
                    break  # what was read is delivered; the next call meets the same, or gets on
                raise
            continue
        rows = columns.rows
        ending = builder.add(&chunk._cursor, &outcome, &view, stop, budget, bytes_ahead(chunk))
        if columns.rows > rows:
            chunk.position = chunk._cursor.previous + 1
        if ending == AT_DAMAGE:
            chunk._note_damage(outcome, &view)
        elif ending == AT_STOP:
            chunk.position = max(chunk.position, stop)
        if ending != AT_END and ending != AT_DAMAGE:
            break
    return ending
