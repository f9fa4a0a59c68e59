# Behind a pointer, as Cython would show the garbage collector what owns these buffers, and a memoryview that the
# collector clears while its buffer is in use raises BufferError.
cdef struct Buffers:
    Py_buffer data
    Py_buffer payload             # what the open batch decompressed to


# By ``Bad``.
cdef tuple _REASONS = (None, fmt.no_room, fmt.beyond_limit, fmt.unknown_magic, fmt.bad_crc, fmt.bad_order, fmt.bad_count)


cdef object reason_of(Batch *batch):
    """Why a batch is bad, in words."""
    return _REASONS[batch.bad](batch.first_number, batch.second_number)


cdef bint is_abort_marker(int codec, records) except -1:
    """True for an ABORT marker: this control batch ends its transaction without a commit.

    A control record's key is its version and its type, two bytes each; other types are not for consumers.
    """
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int64_t number
    try:
        body = bytes(compression.decompress(codec, records)[:64])
    except compression.DecompressionError:
        return False
    p = <const uint8_t *>PyBytes_AS_STRING(body)
    end = p + PyBytes_GET_SIZE(body)
    p = read_varint(p, end, 5, &number)  # size
    if p != NULL and p < end:
        p = read_varint(p + 1, end, 5, &number)  # timestamp, after the attributes
    if p != NULL:
        p = read_varint(p, end, 5, &number)  # offset
    if p != NULL:
        p = read_varint(p, end, 5, &number)  # size of the key
    return p != NULL and number >= 4 and end - p >= 4 and p[2] == 0 and p[3] == 0


def _first_offset(entry):
    return entry[1]
