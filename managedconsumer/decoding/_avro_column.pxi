# The common part of all columns. Included by _columns.pyx.

cdef class Column:
    """The common part of all columns: the union with null around them, and the null rows.

    ``branches``: those of the union, 0 without a union; ``null_at``: the number of the null branch, -1 without one.
    """

    cdef object pa, kind
    cdef int64_t rows, room, nulls
    cdef int branches, null_at
    cdef _GrowingBuffer valid

    def __init__(self, pa, kind, int branches=0, int null_at=-1):
        self.pa, self.kind = pa, kind
        self.branches, self.null_at = branches, null_at

    cdef int begin(self, int64_t rows) except -1:
        """Become empty, with room for ``rows`` rows."""
        self.rows = self.nulls = 0
        self.room = rows
        self.valid = None
        self.allocate()
        return 0

    cdef int take(self, Wire *wire) except -1:
        """Append the next encoded value."""
        cdef int64_t branch
        if self.rows == self.room:
            self.widen()
        if self.branches:
            read_long(wire, &branch)
            if branch < 0 or branch >= self.branches:
                raise ValueError(f"a union has no branch {branch}")
            if branch == self.null_at:
                return self.append_null()
        self.read(wire)
        return self.count_row()

    cdef int append_stored(self, uint64_t value, const uint8_t *start) except -1:
        """Append a value of Protobuf; there is room. ``value``: the number, or the size of the bytes at ``start``."""
        self.store(value, start)
        return self.count_row()

    cdef inline int count_row(self) except -1:
        if self.valid is not None:
            self.valid.start[self.rows >> 3] |= <uint8_t>(1 << (self.rows & 7))
        self.rows += 1
        return 0

    cdef int append_null(self) except -1:
        if self.rows == self.room:
            self.widen()
        if self.valid is None:
            self.valid = _GrowingBuffer(self.pa, (self.room + 7) // 8)
            memset(self.valid.start, 0xFF, (self.room + 7) // 8)
        self.blank()
        self.valid.start[self.rows >> 3] &= <uint8_t>~(1 << (self.rows & 7))
        self.nulls += 1
        self.rows += 1
        return 0

    cdef int widen(self) except -1:
        """Double the room. Only items of arrays and maps need it, as their number is not known before."""
        if self.room > INT32_MAX // 2:
            raise OverflowError("an Arrow array has no room for so many items")
        self.room = max(64, 2 * self.room)
        if self.valid is not None:
            self.valid.hold((self.room + 7) // 8)
        self.allocate()
        return 0

    cdef bint needs_bytes(self):
        """True if each value has at least one encoded byte."""
        return True

    cdef int cut(self, int64_t rows) except -1:
        """Keep the first ``rows`` rows only."""
        self.rows = rows
        return 0

    cdef object marks(self):
        """Return the validity bitmap; None: no row is null."""
        return self.valid.done((self.rows + 7) // 8) if self.nulls else None

    cdef object array(self, list buffers, children=None):
        return self.pa.Array.from_buffers(self.kind, self.rows, buffers, -1 if self.nulls else 0, children=children)

    cdef int allocate(self) except -1:
        """Make room for ``room`` rows, and keep the present ones."""
        raise NotImplementedError

    cdef int read(self, Wire *wire) except -1:
        """Write the next value at ``rows``; ``take`` counts it."""
        raise NotImplementedError

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        """Write a value of Protobuf at ``rows``."""
        raise NotImplementedError

    cdef int blank(self) except -1:
        """Write the placeholder of a null row at ``rows``."""
        raise NotImplementedError

    cdef object done(self):
        """Return the finished array."""
        raise NotImplementedError
