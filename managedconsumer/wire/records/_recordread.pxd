# One record of format 2 after the other: no Python object, no GIL.  The twin of _recordparse_py.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

# The results of reading a record.
cdef enum Outcome:
    GOOD = 0
    BELOW                     # its offset is below the one asked for; it was passed
    DAMAGED
    MISPLACED                 # its offset is out of order; it is in the view

cdef struct Cursor:
    const uint8_t *place
    const uint8_t *end        # of the batch's records
    int64_t base_offset
    int64_t last_offset
    int64_t timestamp         # the batch's first, or the broker's for all
    int64_t previous          # offset
    int64_t start             # records below this offset are passed
    int32_t left
    bint appended             # the broker's timestamp counts

cdef struct View:
    int64_t offset
    int64_t timestamp
    const uint8_t *key        # NULL: none
    const uint8_t *value
    const uint8_t *headers    # from their count on; NULL: none
    Py_ssize_t key_size
    Py_ssize_t value_size
    Py_ssize_t headers_size


cdef inline int16_t big16(const uint8_t *p) noexcept nogil:
    return <int16_t>(<uint32_t>p[0] << 8 | p[1])


cdef inline uint32_t big32(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline int64_t big64(const uint8_t *p) noexcept nogil:
    return <int64_t>(<uint64_t>big32(p) << 32 | big32(p + 4))


cdef inline const uint8_t *read_varint(const uint8_t *p, const uint8_t *end, int limit, int64_t *out) noexcept nogil:
    """The zigzag varint at ``p``; the place behind it, or NULL beyond ``end`` or ``limit`` bytes."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    if p < end and p[0] < 128:
        out[0] = <int64_t>(p[0] >> 1) ^ -<int64_t>(p[0] & 1)
        return p + 1
    if p + 1 < end and p[1] < 128:  # most lengths
        raw = <uint64_t>(p[0] & 127) | <uint64_t>p[1] << 7
        out[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
        return p + 2
    while shift < 7 * limit and p < end:
        raw |= <uint64_t>(p[0] & 127) << shift
        if p[0] < 128:
            out[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return p + 1
        p += 1
        shift += 7
    return NULL


cdef inline const uint8_t *read_field(
    const uint8_t *p, const uint8_t *end, const uint8_t **field, Py_ssize_t *size
) noexcept nogil:
    """A length and as many bytes; -1 is none (NULL).  The place behind it, or NULL."""
    cdef int64_t length
    p = read_varint(p, end, 5, &length)
    if p == NULL or length < -1 or length > end - p:
        return NULL
    if length < 0:
        field[0] = NULL
        size[0] = 0
        return p
    field[0] = p
    size[0] = <Py_ssize_t>length
    return p + length


cdef inline const uint8_t *_skip_headers(const uint8_t *p, const uint8_t *end, int64_t count) noexcept nogil:
    cdef const uint8_t *field
    cdef Py_ssize_t size
    while count > 0:
        p = read_field(p, end, &field, &size)
        if p == NULL or field == NULL:
            return NULL
        p = read_field(p, end, &field, &size)
        if p == NULL:
            return NULL
        count -= 1
    return p


cdef inline Outcome read_record(Cursor *cursor, View *view) noexcept nogil:
    """The next record.  The cursor moves behind it, unless it cannot be read."""
    cdef const uint8_t *p = cursor.place
    cdef const uint8_t *end
    cdef int64_t number
    p = read_varint(p, cursor.end, 5, &number)
    if p == NULL or number <= 0 or number > cursor.end - p:
        return DAMAGED
    end = p + number
    p = read_varint(p + 1, end, 10, &number)  # after the attributes, without meaning so far
    if p == NULL:
        return DAMAGED
    view.timestamp = cursor.timestamp
    if not cursor.appended:
        view.timestamp = <int64_t>(<uint64_t>cursor.timestamp + <uint64_t>number)
    p = read_varint(p, end, 5, &number)
    if p == NULL:
        return DAMAGED
    # 35 bits and a batch's base below 2^63 can pass 64 bits; as unsigned numbers that wraps to what is out of order.
    view.offset = <int64_t>(<uint64_t>cursor.base_offset + <uint64_t>number)
    if view.offset <= cursor.previous or view.offset > cursor.last_offset:
        return MISPLACED
    if view.offset < cursor.start:
        cursor.previous = view.offset
        cursor.place = end
        cursor.left -= 1
        return BELOW
    p = read_field(p, end, &view.key, &view.key_size)
    if p == NULL:
        return DAMAGED
    p = read_field(p, end, &view.value, &view.value_size)
    if p == NULL or p == end:
        return DAMAGED
    view.headers = NULL
    view.headers_size = 0
    if p[0] == 0:
        p += 1
    else:
        view.headers = p
        p = read_varint(p, end, 5, &number)
        if p == NULL or number < 0 or number > end - p:
            return DAMAGED
        p = _skip_headers(p, end, number)
        if p == NULL:
            return DAMAGED
        view.headers_size = p - view.headers
    if p != end:
        return DAMAGED
    cursor.previous = view.offset
    cursor.place = end
    cursor.left -= 1
    return GOOD
