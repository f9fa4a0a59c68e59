# Columns that hold others. Included by _columns.pyx.

cdef class Record(Column):
    """A struct of columns."""

    cdef list fields

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, list fields):
        Column.__init__(self, pa, kind, branches, null_at)
        self.fields = fields

    cdef bint needs_bytes(self):
        return self.branches > 0 or any([(<Column>each).needs_bytes() for each in self.fields])

    cdef int allocate(self) except -1:
        if self.rows == 0:
            for each in self.fields:
                (<Column>each).begin(self.room)
        return 0

    cdef int read(self, Wire *wire) except -1:
        for each in self.fields:
            (<Column>each).take(wire)
        return 0

    cdef int blank(self) except -1:
        for each in self.fields:
            (<Column>each).append_null()
        return 0

    cdef int cut(self, int64_t rows) except -1:
        self.rows = rows
        for each in self.fields:
            (<Column>each).cut(rows)
        return 0

    cdef object done(self):
        return self.array([self.marks()], [(<Column>each).done() for each in self.fields])


cdef class Blocks(Column):
    """An array, or a map, which is an array of pairs: blocks of items, then an empty block.

    ``weight``: bytes of an item in columns (``avro_bounds.Size``).
    """

    cdef _GrowingBuffer offsets
    cdef Column items
    cdef bint sized
    cdef int64_t weight

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, list fields, int64_t weight):
        Column.__init__(self, pa, kind, branches, null_at)
        self.items = fields[0]
        self.sized = self.items.needs_bytes()
        self.weight = weight

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.offsets = _GrowingBuffer(self.pa, (self.room + 1) * 4)
            (<int32_t *>self.offsets.start)[0] = 0
            self.items.begin(self.room)
        else:
            self.offsets.hold((self.room + 1) * 4)
        return 0

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t count, size
        while True:
            read_long(wire, &count)
            if count == 0:
                break
            if count < 0:
                count = -max(count, -INT64_MAX)
                read_size(wire, &size)
            if not self.sized:
                if count > wire.empty:
                    raise ValueError(f"a block of {count} items that take no bytes: {MOST_EMPTY_ITEMS} in all may be")
                wire.empty -= count
            elif count > wire.end - wire.place:
                raise ValueError(f"a block of {count} items, where {wire.end - wire.place} bytes are left")
            take_room(wire, count, self.weight)
            while count:
                self.items.take(wire)
                count -= 1
        (<int32_t *>self.offsets.start)[self.rows + 1] = <int32_t>self.items.rows
        return 0

    cdef int blank(self) except -1:
        (<int32_t *>self.offsets.start)[self.rows + 1] = <int32_t>self.items.rows
        return 0

    cdef int cut(self, int64_t rows) except -1:
        self.rows = rows
        self.items.cut((<int32_t *>self.offsets.start)[rows])
        return 0

    cdef object done(self):
        return self.array([self.marks(), self.offsets.done((self.rows + 1) * 4)], [self.items.done()])
