# Batch headers and records as C sees them: no Python object, no GIL.  The twin of _batches_py and _recordparse_py;
# what is checked, and in which order, must be the same there.
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

from managedconsumer.wire.records._recordread cimport big16, big32, big64

cdef extern from "_crc32c.h" nogil:
    void mc_crc_init()
    uint32_t mc_crc32c(const uint8_t *data, size_t size, uint32_t crc)
    uint32_t mc_crc32c_portable(const uint8_t *data, size_t size, uint32_t crc)
    uint32_t mc_crc32(const uint8_t *data, size_t size)
    int mc_crc_hardware

# Why a batch is bad; the words are in ``format``, in this order in ``_batches.pxi``; two numbers go with them.
cdef enum Bad:
    SOUND = 0
    NO_ROOM
    BEYOND_LIMIT
    UNKNOWN_MAGIC
    BAD_CRC
    BAD_ORDER
    BAD_COUNT

cdef enum Layout:
    PREFIX_BYTES = 12
    MAGIC_AT = 16
    HEADER_BYTES = 61
    CRC_FROM = 21
    LEGACY_CRC_FROM = 16
    MIN_RECORD_BYTES = 7
    CODEC_MASK = 7
    UNPACKS_TO = 4                # a guess of how many times larger a batch is unpacked
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32

cdef struct Batch:
    Py_ssize_t start
    Py_ssize_t end
    int64_t base_offset       # -1 where only the last offset is known (compressed formats 0 and 1)
    int64_t last_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int64_t first_number      # for the reason, if it is bad
    int64_t second_number
    int32_t count
    int32_t leader_epoch
    int16_t attributes
    uint8_t magic
    uint8_t bad

cdef struct Walk:
    Batch *batches
    Py_ssize_t used
    Py_ssize_t room
    int64_t expected          # the lowest offset that the next batch may begin with
    Py_ssize_t needs_bytes


cdef inline Batch *_add(Walk *walk, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, uint8_t magic) noexcept nogil:
    """A new entry of the walk with neutral values; NULL without memory."""
    cdef Batch *batch
    cdef Py_ssize_t room
    if walk.used == walk.room:
        room = 2 * walk.room if walk.room else 8
        batch = <Batch *>realloc(walk.batches, room * sizeof(Batch))
        if batch == NULL:
            return NULL
        walk.batches = batch
        walk.room = room
    batch = &walk.batches[walk.used]
    walk.used += 1
    batch.start = start
    batch.end = end
    batch.base_offset = batch.last_offset = base_offset
    batch.base_timestamp = batch.max_timestamp = batch.producer_id = -1
    batch.first_number = batch.second_number = 0
    batch.count = 1
    batch.leader_epoch = -1
    batch.attributes = 0
    batch.magic = magic
    batch.bad = SOUND
    return batch


cdef inline void _mark(Batch *batch, uint8_t bad, int64_t first, int64_t second) noexcept nogil:
    batch.bad = bad
    batch.first_number = first
    batch.second_number = second


cdef inline void _describe(Walk *walk, Batch *batch, const uint8_t *p, bint check_crcs) noexcept nogil:
    """Format 2: read the header that begins at ``p``."""
    cdef int32_t last_delta = <int32_t>big32(p + 23)
    cdef int64_t base = batch.base_offset
    cdef Py_ssize_t payload = batch.end - batch.start - HEADER_BYTES
    cdef uint32_t computed, stated
    batch.leader_epoch = <int32_t>big32(p + 12)
    batch.attributes = big16(p + 21)
    batch.base_timestamp = big64(p + 27)
    batch.max_timestamp = big64(p + 35)
    batch.producer_id = big64(p + 43)
    batch.count = <int32_t>big32(p + 57)
    batch.last_offset = <int64_t>(<uint64_t>base + <uint64_t><int64_t>last_delta)
    if check_crcs:
        computed = mc_crc32c(p + CRC_FROM, batch.end - batch.start - CRC_FROM, 0)
        stated = big32(p + 17)
        if computed != stated:
            _mark(batch, BAD_CRC, computed, stated)
            return
    if base < walk.expected or last_delta < 0 or base >= INT64_MAX - last_delta:
        _mark(batch, BAD_ORDER, base, walk.expected)
    elif batch.count < 0 or (
        not batch.attributes & CODEC_MASK and <int64_t>batch.count * MIN_RECORD_BYTES > payload
    ):
        _mark(batch, BAD_COUNT, batch.count, payload)
    else:
        walk.expected = batch.last_offset + 1


cdef inline void _describe_legacy(Walk *walk, Batch *batch, const uint8_t *p, bint check_crcs) noexcept nogil:
    """Formats 0 and 1."""
    cdef uint32_t computed, stated
    batch.attributes = p[17]
    if check_crcs:
        computed = mc_crc32(p + LEGACY_CRC_FROM, batch.end - batch.start - LEGACY_CRC_FROM)
        stated = big32(p + 12)
        if computed != stated:
            _mark(batch, BAD_CRC, computed, stated)
            return
    if batch.last_offset < walk.expected or batch.last_offset == INT64_MAX:
        _mark(batch, BAD_ORDER, batch.last_offset, walk.expected)
    else:
        walk.expected = batch.last_offset + 1
    if batch.attributes & CODEC_MASK:
        batch.base_offset = -1


cdef inline int walk_batches(
    Walk *walk, const uint8_t *data, Py_ssize_t size, bint check_crcs, int64_t limit
) noexcept nogil:
    """Find all batches of a chunk.  0, or -1 without memory."""
    cdef Py_ssize_t start = 0, left, end
    cdef int64_t base
    cdef int32_t claimed
    cdef uint8_t magic, bad
    cdef Batch *batch
    while True:
        left = size - start
        if left < MAGIC_AT + 1:
            if left and not start:
                walk.needs_bytes = HEADER_BYTES
            return 0
        base = big64(data + start)
        claimed = <int32_t>big32(data + start + 8)
        magic = data[start + MAGIC_AT]
        end = start + PREFIX_BYTES + <Py_ssize_t>claimed
        bad = SOUND
        if magic > 2:
            bad = UNKNOWN_MAGIC
        elif claimed < (14 if magic == 0 else 22 if magic == 1 else HEADER_BYTES - PREFIX_BYTES):
            bad = NO_ROOM
        elif end > size:
            if claimed <= limit:
                if not start:
                    walk.needs_bytes = end
                return 0
            bad = BEYOND_LIMIT
        if bad != SOUND:
            # From here on nothing can be told apart: the rest of the chunk is one bad batch.
            batch = _add(walk, start, size, base, 2)
            if batch == NULL:
                return -1
            batch.count = 0
            _mark(batch, bad, magic if bad == UNKNOWN_MAGIC else claimed, limit)
            return 0
        batch = _add(walk, start, end, base, magic)
        if batch == NULL:
            return -1
        if magic == 2:
            _describe(walk, batch, data + start, check_crcs)
        else:
            _describe_legacy(walk, batch, data + start, check_crcs)
        start = end
