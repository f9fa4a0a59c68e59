# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: embedsignature=True
"""Avro's binary encoding straight into Arrow's buffers, field by field: no Python object for a value.

``avro_plan`` makes the columns from a schema; ``avro_values`` reads with fastavro what is not covered here.  Every
length and number of the wire is checked before it is used; a value that is bad is taken back out of all columns.
Sources: Avro 1.12 specification (binary encoding, logical types), Arrow Columnar Format 1.x.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    typedef __int128 mc_int128;
    typedef unsigned __int128 mc_uint128;
    """
    ctypedef long long mc_int128
    ctypedef unsigned long long mc_uint128

INTERFACE = 1

include "../../wire/records/_room.pxi"

# Items that take no bytes on the wire (nulls, empty records) are only bounded by a number that the value itself names.
cdef enum:
    MOST_EMPTY_ITEMS = 1 << 16
    PREFIX = 5                  # of a schema registry: a zero, and the schema's id in four bytes

# What Python's datetime can hold, and with it Spark's Python API: the years 1 to 9999.
cdef int64_t FIRST_DAY = -719162, LAST_DAY = 2932896
cdef int64_t DAY_MICROSECONDS = 86400000000


class OtherSchemaError(Exception):
    """The value was written with another schema than the columns'."""


cdef struct Wire:
    const uint8_t *place
    const uint8_t *end


cdef int read_long(Wire *wire, int64_t *value) except -1:
    """A zigzag number of at most 64 bits."""
    cdef uint64_t found = 0, byte
    cdef int shift = 0
    while wire.place < wire.end:
        byte = wire.place[0]
        wire.place += 1
        if shift == 63 and byte > 1:
            raise ValueError("a number has more than 64 bits")
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>(found >> 1) ^ -<int64_t>(found & 1)
            return 0
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    raise ValueError("the value ends inside a number")


cdef int read_size(Wire *wire, int64_t *size) except -1:
    """The length of bytes that follow."""
    read_long(wire, size)
    if size[0] < 0 or size[0] > wire.end - wire.place:
        raise ValueError(f"{size[0]} bytes should follow, where {wire.end - wire.place} are left")
    return 0


cdef int check_text(const uint8_t *text, int64_t size) except -1:
    """UTF-8; most text is ASCII."""
    cdef int64_t i = 0
    cdef uint64_t word
    while i + 8 <= size:
        memcpy(&word, text + i, 8)
        if word & <uint64_t>0x8080808080808080:
            break
        i += 8
    while i < size and text[i] < 0x80:
        i += 1
    if i < size:
        PyUnicode_DecodeUTF8(<const char *>text + i, size - i, NULL)
    return 0


cdef class Column:
    """What all columns have in common: the union with null around them, and which rows are null.

    ``branches``: how many a union has, 0 without a union; ``null_at``: which of them is null, -1 if none is.
    """

    cdef object pa, kind
    cdef int64_t rows, room, nulls
    cdef int branches, null_at
    cdef _Room valid

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
            self.valid = _Room(self.pa, (self.room + 7) // 8)
            memset(self.valid.start, 0xFF, (self.room + 7) // 8)
        self.blank()
        self.valid.start[self.rows >> 3] &= <uint8_t>~(1 << (self.rows & 7))
        self.nulls += 1
        self.rows += 1
        return 0

    cdef int widen(self) except -1:
        """Only the items of arrays and maps need it: how many there are, nobody knows before."""
        self.room = max(64, 2 * self.room)
        if self.room > INT32_MAX:
            raise OverflowError("an Arrow array has no room for so many items")
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


cdef class Fixed(Column):
    """Values of one width (bytes)."""

    cdef _Room data
    cdef int width

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.data = _Room(self.pa, self.room * self.width)
        else:
            self.data.hold(self.room * self.width)
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
    """A ``long``, or a timestamp that becomes microseconds. ``scale``: microseconds in one; 0: it is no timestamp."""

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
    """A decimal in big-endian bytes. ``size``: of a ``fixed``; -1: ``bytes``, which say how many they are."""

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
    """Arrow has a bit for each."""

    cdef _Room data

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.data = _Room(self.pa, (self.room + 7) // 8)
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
    """Bytes of any length. ``text``: they are UTF-8. ``size``: of a ``fixed``; -1: each value says how many they are."""

    cdef _Room offsets, data
    cdef bint text
    cdef int64_t used, size

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, bint text=False, int64_t size=-1):
        Column.__init__(self, pa, kind, branches, null_at)
        self.text, self.size = text, size

    cdef bint needs_bytes(self):
        return self.size != 0

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.offsets = _Room(self.pa, (self.room + 1) * 4)
            self.data = _Room(self.pa, self.room * 16)
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
    """``null``, which is nothing on the wire: a column of text without any. It is never in a union."""

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
        self.put(<const uint8_t *><const char *>symbol, len(symbol))
        return 0


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
    """An array, or a map, which is an array of pairs: blocks of items, the last one with none."""

    cdef _Room offsets
    cdef Column items
    cdef bint sized

    def __init__(self, pa, kind, int branches=0, int null_at=-1, *, list fields):
        Column.__init__(self, pa, kind, branches, null_at)
        self.items = fields[0]
        self.sized = self.items.needs_bytes()

    cdef int allocate(self) except -1:
        if self.rows == 0:
            self.offsets = _Room(self.pa, (self.room + 1) * 4)
            (<int32_t *>self.offsets.start)[0] = 0
            self.items.begin(self.room)
        else:
            self.offsets.hold((self.room + 1) * 4)
        return 0

    cdef int read(self, Wire *wire) except -1:
        cdef int64_t count, size, most
        while True:
            read_long(wire, &count)
            if count == 0:
                break
            if count < 0:
                count = -max(count, -INT64_MAX)
                read_size(wire, &size)
            most = wire.end - wire.place if self.sized else MOST_EMPTY_ITEMS
            if count > most:
                raise ValueError(f"a block of {count} items, where {wire.end - wire.place} bytes are left")
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


def decode(Column column not None, raw, written_so=None):
    """The values in ``raw``, a binary array: the finished array, and for each row that is bad its number and why.

    ``written_so``: values begin with the id of a registry's schema; called with each id that is not the one before,
    it says whether that is the columns' schema, or raises ValueError if there is none.  Raises OtherSchemaError for a
    value of another schema, and what ``written_so`` raises besides.
    """
    cdef int64_t row, rows = len(raw), first = raw.offset, number, known = -1
    cdef const uint8_t *data = NULL
    cdef const int32_t *offsets = NULL
    cdef const uint8_t *valid = NULL
    cdef Wire wire
    cdef dict bad = {}
    marks, places, content = raw.buffers()
    column.begin(rows)
    if rows:
        offsets = <const int32_t *><uintptr_t>places.address + first
        data = <const uint8_t *><uintptr_t>content.address if content is not None else NULL
    if marks is not None:
        valid = <const uint8_t *><uintptr_t>marks.address
    for row in range(rows):
        if valid != NULL and not valid[(first + row) >> 3] & (1 << ((first + row) & 7)):
            column.append_null()
            continue
        wire.place, wire.end = data + offsets[row], data + offsets[row + 1]
        try:
            if written_so is not None:
                number = read_id(&wire)
                if number != known:
                    if not written_so(number):
                        raise OtherSchemaError
                    known = number
            column.take(&wire)
            if wire.place != wire.end:
                raise ValueError(
                    f"{wire.end - wire.place} bytes are left: the value was written with another schema"
                )
        except ValueError as error:
            column.cut(row)
            column.append_null()
            bad[row] = error
    return column.done(), bad


cdef int64_t read_id(Wire *wire) except -1:
    """The id of a registry's schema."""
    cdef const uint8_t *place = wire.place
    if wire.end - place < PREFIX or place[0] != 0:
        raise ValueError("the value does not begin with a schema's id")
    wire.place += PREFIX
    return (<int64_t>place[1] << 24) | (<int64_t>place[2] << 16) | (<int64_t>place[3] << 8) | place[4]
