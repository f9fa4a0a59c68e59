# Encoded numbers, lengths and text. Included by _columns.pyx.

cdef struct Wire:
    const uint8_t *place
    const uint8_t *end
    int64_t room                # bytes that the value may still take in columns
    int64_t empty               # the number of items without bytes that it may still have


cdef int read_long(Wire *wire, int64_t *value) except -1:
    """Read a zigzag number of at most 64 bits."""
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
    """Read the length of the following bytes."""
    read_long(wire, size)
    if size[0] < 0 or size[0] > wire.end - wire.place:
        raise ValueError(f"{size[0]} bytes should follow, where {wire.end - wire.place} are left")
    return 0


cdef int take_room(Wire *wire, int64_t count, int64_t weight) except -1:
    """Take the room of ``count`` items of ``weight`` bytes each."""
    if count > wire.room // weight:
        raise ValueError("the value becomes too large: its counts and nulls say more than its bytes")
    wire.room -= count * weight
    return 0


cdef int check_text(const uint8_t *text, int64_t size) except -1:
    """Raise ValueError for bytes that are no UTF-8; most text is ASCII."""
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
