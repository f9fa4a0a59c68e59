# Records straight into Arrow's buffers: in one pass over a batch, or where there are headers in two, of which the first
# counts them.  No Python object, no GIL.  Source: Arrow Columnar Format 1.x (validity bitmaps, 32-bit offsets).
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from managedconsumer.wire.records._recordread cimport BELOW, GOOD, Cursor, Outcome, View, read_field, read_record, read_varint

# Why the reading ended.
cdef enum Ending:
    AT_END = 0                # of the batch
    AT_STOP                   # the next record is at or above the offset asked for
    FULL                      # the next record would be too much
    AT_DAMAGE                 # the next record cannot be read; the outcome says why
    ODD_NAME                  # a header's name is not ASCII: Python has to look at it
    FIRST_HEADERS             # the next record has headers, the first so far: there is no room for any yet
    NO_KEY_ROOM               # the next record's key has no room

cdef enum:
    ROW_BYTES = 32            # what a row takes besides its key, value and headers, roughly

cdef struct Count:
    int64_t rows
    int64_t bytes             # of whole records and rows
    int64_t key_bytes
    int64_t value_bytes
    int64_t headers
    int64_t name_bytes
    int64_t content_bytes

# A column of bytes: offsets of rows + 1 numbers, of which the first is there; validity with all bits set.
cdef struct Binary:
    int32_t *offsets
    uint8_t *data
    uint8_t *valid
    int64_t rows
    int64_t nulls
    int64_t room              # bytes of data
    int32_t used

cdef struct Columns:
    Binary key
    Binary value
    Binary names
    Binary contents
    int64_t *offsets          # each of these is NULL if it is not wanted
    int64_t *timestamps
    int32_t *lists            # also NULL as long as no record has headers
    uint8_t *lists_valid
    int64_t headless          # rows without headers
    bint wants_headers
    int64_t rows
    int64_t bytes             # of whole records and rows


cdef inline bint _count_headers(View *view, Count *count) noexcept nogil:
    """Add a record's headers, which are sound; False if a name is not ASCII."""
    cdef const uint8_t *end = view.headers + view.headers_size
    cdef const uint8_t *field = NULL
    cdef Py_ssize_t size = 0, i
    cdef int64_t number = 0
    cdef const uint8_t *p = read_varint(view.headers, end, 5, &number)
    while number > 0:
        p = read_field(p, end, &field, &size)
        for i in range(size):
            if field[i] > 127:
                return False
        count.name_bytes += size
        p = read_field(p, end, &field, &size)
        count.content_bytes += size
        count.headers += 1
        number -= 1
    return True


cdef inline void _step_back(Cursor *cursor, const uint8_t *place, int64_t previous) noexcept nogil:
    cursor.place = place
    cursor.previous = previous
    cursor.left += 1


cdef inline Ending count_records(
    Cursor *cursor, Count *count, Outcome *outcome, View *view, int64_t stop, int64_t budget, bint one
) noexcept nogil:
    """Count records below ``stop`` up to ``budget`` bytes in all, or ``one`` at least; the cursor moves behind them."""
    cdef const uint8_t *place
    cdef int64_t previous, size
    while cursor.left > 0:
        place, previous = cursor.place, cursor.previous
        outcome[0] = read_record(cursor, view)
        if outcome[0] == BELOW:
            continue
        if outcome[0] != GOOD:
            return AT_DAMAGE
        size = cursor.place - place + ROW_BYTES
        if view.offset >= stop:
            _step_back(cursor, place, previous)
            return AT_STOP
        if (count.rows or not one) and size > budget - count.bytes:
            _step_back(cursor, place, previous)
            return FULL
        if view.headers != NULL and not _count_headers(view, count):
            _step_back(cursor, place, previous)
            return ODD_NAME
        count.rows += 1
        count.bytes += size
        count.key_bytes += view.key_size
        count.value_bytes += view.value_size
    return AT_END


cdef inline void _put(Binary *column, const uint8_t *field, Py_ssize_t size) noexcept nogil:
    if size:
        memcpy(column.data + column.used, field, size)
    elif field == NULL:
        column.valid[column.rows >> 3] &= <uint8_t>~(1 << (column.rows & 7))
        column.nulls += 1
    column.used += <int32_t>size
    column.rows += 1
    column.offsets[column.rows] = column.used


cdef inline int64_t microseconds(int64_t milliseconds) noexcept nogil:
    """Held at the ends of 64 bits."""
    if milliseconds > INT64_MAX // 1000:
        return INT64_MAX
    if milliseconds < -(INT64_MAX // 1000):
        return INT64_MIN
    return milliseconds * 1000


cdef inline void _copy_headers(View *view, Columns *to) noexcept nogil:
    cdef const uint8_t *end = view.headers + view.headers_size
    cdef const uint8_t *field = NULL
    cdef Py_ssize_t size = 0
    cdef int64_t number = 0
    cdef const uint8_t *p = view.headers
    if view.headers != NULL:
        p = read_varint(view.headers, end, 5, &number)
    if number == 0:  # null rather than empty, as in Spark
        to.lists_valid[to.rows >> 3] &= <uint8_t>~(1 << (to.rows & 7))
        to.headless += 1
    while number > 0:
        p = read_field(p, end, &field, &size)
        _put(&to.names, field, size)
        p = read_field(p, end, &field, &size)
        _put(&to.contents, field, size)
        number -= 1
    to.lists[to.rows + 1] = <int32_t>to.names.rows


cdef inline Ending copy_records(
    Cursor *cursor, Columns *to, Outcome *outcome, View *view, int64_t stop, int64_t budget, int64_t rows
) noexcept nogil:
    """Copy up to ``rows`` records into columns that have room for them, within the limits of ``count_records``."""
    cdef const uint8_t *place
    cdef int64_t previous, size
    while cursor.left > 0 and rows > 0:
        place, previous = cursor.place, cursor.previous
        outcome[0] = read_record(cursor, view)
        if outcome[0] == BELOW:
            continue
        if outcome[0] != GOOD:
            return AT_DAMAGE
        size = cursor.place - place + ROW_BYTES
        if view.offset >= stop:
            _step_back(cursor, place, previous)
            return AT_STOP
        if to.rows and size > budget - to.bytes:
            _step_back(cursor, place, previous)
            return FULL
        if to.lists == NULL and view.headers != NULL and to.wants_headers:
            _step_back(cursor, place, previous)
            return FIRST_HEADERS
        if to.key.offsets != NULL:
            # Values have room for whatever comes; keys, most of which are short or none, only for what is likely.
            if view.key_size > to.key.room - to.key.used:
                _step_back(cursor, place, previous)
                return NO_KEY_ROOM
            _put(&to.key, view.key, view.key_size)
        if to.value.offsets != NULL:
            _put(&to.value, view.value, view.value_size)
        if to.offsets != NULL:
            to.offsets[to.rows] = view.offset
        if to.timestamps != NULL:
            to.timestamps[to.rows] = microseconds(view.timestamp)
        if to.lists != NULL:
            _copy_headers(view, to)
        to.rows += 1
        to.bytes += size
        rows -= 1
    return AT_END
