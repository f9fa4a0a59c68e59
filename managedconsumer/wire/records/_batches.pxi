# Behind a pointer, as Cython would show the garbage collector what owns these buffers, and a memoryview that the
# collector clears while its buffer is in use raises BufferError.
cdef struct Buffers:
    Py_buffer data
    Py_buffer payload             # what the open batch decompressed to


cdef object reason_of(Batch *batch):
    """Why a batch is bad, in words."""
    if batch.bad == NO_ROOM:
        return fmt.no_room(batch.first_number)
    if batch.bad == BEYOND_LIMIT:
        return fmt.beyond_limit(batch.first_number, batch.second_number)
    if batch.bad == UNKNOWN_MAGIC:
        return fmt.unknown_magic(batch.first_number)
    if batch.bad == BAD_CRC:
        return fmt.bad_crc(batch.first_number, batch.second_number)
    if batch.bad == BAD_ORDER:
        return fmt.bad_order(batch.first_number, batch.second_number)
    return fmt.bad_count(batch.first_number, batch.second_number)


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
