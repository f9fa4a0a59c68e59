# Columns of values that hold no others. Included by _columns.pyx.

# The range of Python's datetime, and with it of Spark's Python API: the years 1 to 9999.
cdef int64_t FIRST_DAY = -719162, LAST_DAY = 2932896
cdef int64_t DAY_MICROSECONDS = 86400000000


cdef class Fixed(Column):
    """Values of one width (bytes)."""

    cdef _GrowingBuffer data
    cdef int width

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.data = _GrowingBuffer(self.pa, self.room * self.width)
        else:
            self.data.hold(self.room * self.width)
        return 0

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        memcpy(self.data.start + self.rows * self.width, &value, self.width)
        return 0

    cdef int blank(self) except -1:
        memset(self.data.start + self.rows * self.width, 0, self.width)
        return 0

    cdef object done(self):
        return self.array([self.marks(), self.data.done(self.rows * self.width)])


cdef class Int(Fixed):
    """An ``int``, or a ``date``: days."""

    cdef bint days

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, bint days=False):
        Column.__init__(self, pa, kind, branches, null_at)
        self.width = 4
        self.days = days

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t value
        read_long(wire, &value)
        if value > INT32_MAX or value < INT32_MIN:
            raise ValueError(f"{value} is no int of 32 bits")
        if self.days and (value < FIRST_DAY or value > LAST_DAY):
            raise ValueError(f"the date, {value} days from 1970, is not in the years 1 to 9999")
        (<int32_t *>self.data.start)[self.rows] = <int32_t>value
        return 0


cdef class Long(Fixed):
    """A ``long``, or a timestamp in units of ``scale`` microseconds (0: no timestamp)."""

    cdef int64_t scale

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, int64_t scale=0):
        Column.__init__(self, pa, kind, branches, null_at)
        self.width = 8
        self.scale = scale

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t value
        read_long(wire, &value)
        if self.scale:
            if value < FIRST_DAY * (DAY_MICROSECONDS // self.scale) or (
                value >= (LAST_DAY + 1) * (DAY_MICROSECONDS // self.scale)
            ):
                raise ValueError(f"the timestamp {value} is not in the years 1 to 9999")
            value *= self.scale
        (<int64_t *>self.data.start)[self.rows] = value
        return 0


cdef class Real(Fixed):
    """A ``float`` (``width`` 4) or a ``double`` (8)."""

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, int width=8):
        Column.__init__(self, pa, kind, branches, null_at)
        self.width = width

    cdef int read(self, Wire *wire) except -1:
        if wire.end - wire.place < self.width:
            raise ValueError("the value ends inside a floating-point number")
        memcpy(self.data.start + self.rows * self.width, wire.place, self.width)
        wire.place += self.width
        return 0


cdef class Decimal(Fixed):
    """A decimal in big-endian bytes. ``size``: of a ``fixed``; -1: ``bytes``, which begin with their size."""

    cdef int64_t size
    cdef mc_int128 limit

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, int64_t size=-1):
        cdef int i
        Column.__init__(self, pa, kind, branches, null_at)
        self.width = 16
        self.size = size
        self.limit = 1
        for i in range(kind.precision):
            self.limit *= 10

    cdef bint needs_bytes(self):
        return self.size != 0

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t size = self.size, i
        cdef mc_uint128 found = 0
        cdef mc_int128 value
        cdef bint negative, fits = True
        if size < 0:
            read_size(wire, &size)
        elif size > wire.end - wire.place:
            raise ValueError("the value ends inside a decimal")
        negative = size > 0 and wire.place[0] >= 0x80
        if negative:
            found = ~found
        for i in range(size):
            if i < size - 16 and wire.place[i] != (0xFF if negative else 0):
                fits = False
            found = (found << 8) | wire.place[i]
        value = <mc_int128>found
        if not fits or (value < 0) != negative or value >= self.limit or value <= -self.limit:
            raise ValueError(f"a decimal has more than {self.kind.precision} digits")
        wire.place += size
        memcpy(self.data.start + self.rows * 16, &value, 16)
        return 0


cdef class Boolean(Column):
    """One bit for each value."""

    cdef _GrowingBuffer data

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.data = _GrowingBuffer(self.pa, (self.room + 7) // 8)
        else:
            self.data.hold((self.room + 7) // 8)
        return 0

    cdef int read(self, Wire *wire) except -1:
        if wire.place == wire.end:
            raise ValueError("the value ends before a boolean")
        if wire.place[0] > 1:
            raise ValueError(f"a boolean is {wire.place[0]}")
        self.put(wire.place[0])
        wire.place += 1
        return 0

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        self.put(value != 0)
        return 0

    cdef void put(self, int bit) noexcept:
        if bit:
            self.data.start[self.rows >> 3] |= <uint8_t>(1 << (self.rows & 7))
        else:
            self.data.start[self.rows >> 3] &= <uint8_t>~(1 << (self.rows & 7))

    cdef int blank(self) except -1:
        self.put(0)
        return 0

    cdef object done(self):
        return self.array([self.marks(), self.data.done((self.rows + 7) // 8)])


cdef class Bytes(Column):
    """Bytes of any length. ``text``: they are UTF-8. ``size``: of a ``fixed``; -1: each value begins with its size."""

    cdef _GrowingBuffer offsets, data
    cdef bint text
    cdef int64_t used, size

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, bint text=False, int64_t size=-1):
        Column.__init__(self, pa, kind, branches, null_at)
        self.text, self.size = text, size

    cdef bint needs_bytes(self):
        return self.size != 0

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.offsets = _GrowingBuffer(self.pa, (self.room + 1) * 4)
            self.data = _GrowingBuffer(self.pa, self.room * 16)
            self.used = (<int32_t *>self.offsets.start)[0] = 0
        else:
            self.offsets.hold((self.room + 1) * 4)
        return 0

    cdef int put(self, const uint8_t *start, int64_t size) except -1:
        cdef int64_t used = self.used + size
        if used > INT32_MAX:
            raise OverflowError("an Arrow column has no room for more than 2 GiB")
        if used > self.data.size:
            self.data.hold(used)
        memcpy(self.data.start + self.used, start, size)
        self.used = used
        (<int32_t *>self.offsets.start)[self.rows + 1] = <int32_t>self.used
        return 0

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t size = self.size
        if size < 0:
            read_size(wire, &size)
        elif size > wire.end - wire.place:
            raise ValueError(f"{size} bytes should follow, where {wire.end - wire.place} are left")
        if self.text:
            check_text(wire.place, size)
        self.put(wire.place, size)
        wire.place += size
        return 0

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        if self.text:
            check_text(start, value)
        return self.put(start, value)

    cdef int blank(self) except -1:
        (<int32_t *>self.offsets.start)[self.rows + 1] = <int32_t>self.used
        return 0

    cdef int cut(self, int64_t rows) except -1:
        self.rows = rows
        self.used = (<int32_t *>self.offsets.start)[rows]
        return 0

    cdef object done(self):
        return self.array([self.marks(), self.offsets.done((self.rows + 1) * 4), self.data.done(self.used)])


cdef class Null(Bytes):
    """``null``, which has no encoded bytes: a column of text with nulls only. It is never in a union."""

    cdef bint needs_bytes(self):
        return False

    cdef int take(self, Wire *wire) except -1:
        return self.append_null()


cdef class Enum(Bytes):
    """The symbol's name."""

    cdef list symbols

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, symbols):
        Column.__init__(self, pa, kind, branches, null_at)
        self.symbols = [each.encode() for each in symbols]

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t number
        cdef bytes symbol
        read_long(wire, &number)
        if number < 0 or number >= len(self.symbols):
            raise ValueError(f"an enum has no symbol {number}")
        symbol = <bytes>self.symbols[number]
        take_room(wire, len(symbol), 1)
        self.put(<const uint8_t *><const char *>symbol, len(symbol))
        return 0
