# The common part of all columns. Included by _avro.pyx.

cdef class Column:
    """The common part of all columns: the union with null around them, and which rows are null.

    ``branches``: how many a union has, 0 without a union; ``null_at``: which of them is null, -1 if none is.
    """

    cdef object pa, kind
    cdef int64_t rows, room, nulls
    cdef int branches, null_at
    cdef _GrowingBuffer valid

    def __init__(self, pa, kind, int branches=0, int null_at=-1):
        self.pa, self.kind = pa, kind
        self.branches, self.null_at = branches, null_at

    cdef int begin(self, int64_t rows) except -1:
        """Empty, with room for so many rows."""
        self.rows = self.nulls = 0
        self.room = rows
        self.valid = None
        self.allocate()
        return 0

    cdef int take(self, Wire *wire) except -1:
        """Append the next value of the wire."""
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
        """Only the items of arrays and maps need it: how many there are, nobody knows before."""
        if self.room > INT32_MAX // 2:
            raise OverflowError("an Arrow array has no room for so many items")
        self.room = max(64, 2 * self.room)
        if self.valid is not None:
            self.valid.hold((self.room + 7) // 8)
        self.allocate()
        return 0

    cdef bint needs_bytes(self):
        """Whether each value takes a byte on the wire at least."""
        return True

    cdef int cut(self, int64_t rows) except -1:
        """Take back the rows behind the first so many."""
        self.rows = rows
        return 0

    cdef object marks(self):
        """The validity bitmap; None: no row is null."""
        return self.valid.done((self.rows + 7) // 8) if self.nulls else None

    cdef object array(self, list buffers, children=None):
        return self.pa.Array.from_buffers(self.kind, self.rows, buffers, -1 if self.nulls else 0, children=children)

    cdef int allocate(self) except -1:
        """Make room for ``room`` rows, and keep those that are there."""
        raise NotImplementedError

    cdef int read(self, Wire *wire) except -1:
        """Put the next value at ``rows``; ``take`` counts it."""
        raise NotImplementedError

    cdef int blank(self) except -1:
        """Put what stands at ``rows`` where the row is null."""
        raise NotImplementedError

    cdef object done(self):
        """The finished array."""
        raise NotImplementedError
