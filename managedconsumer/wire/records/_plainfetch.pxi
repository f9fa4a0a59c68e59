# The twin, ``managedconsumer.wire.protocol.plainfetch``, for the commonest Fetch request and response, in one
# step. What is not quite plain gives None: the twin looks at it then, and the table's reader and writer after that.

cdef enum:
    ROOM = 2048                    # bytes of a request: what repeats the last one names one partition, or a few
    PART_BYTES = 33                # of a partition in a request


cdef inline uint32_t be32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t be64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>be32(at) << 32) | be32(at + 4))


cdef inline uint8_t *put32(uint8_t *at, int32_t value) noexcept nogil:
    cdef int shift
    for shift in range(4):
        at[shift] = <uint8_t>(<uint32_t>value >> (24 - 8 * shift))
    return at + 4


cdef inline uint8_t *put64(uint8_t *at, int64_t value) noexcept nogil:
    return put32(put32(at, <int32_t>(value >> 32)), <int32_t>value)


cdef inline Py_ssize_t compact_length(const uint8_t **at, const uint8_t *stop) noexcept nogil:
    """-1: null; -2: damaged."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < stop and shift < 35:
        byte = at[0][0]
        value |= <uint64_t>(byte & 0x7F) << shift
        at[0] += 1
        if not byte & 0x80:
            return <Py_ssize_t>value - 1 if value <= 0x7FFFFFFF else -2
        shift += 7
    return -2


cdef object read_part(data, const uint8_t *begin, const uint8_t **at, const uint8_t *stop):
    """One partition of an answer; None: not plain."""
    cdef const uint8_t *head = at[0]
    cdef const uint8_t *records
    cdef Py_ssize_t size
    if stop - head < 36 or head[30] > 1:
        return None
    at[0] = head + 35
    size = compact_length(at, stop)
    records = at[0]
    if size < -1 or stop - records <= max(0, size) or records[max(0, size)]:
        return None
    at[0] = records + max(0, size) + 1
    return {
        "partition_index": <int32_t>be32(head),
        "error_code": <int16_t>((head[4] << 8) | head[5]),
        "high_watermark": be64(head + 6),
        "last_stable_offset": be64(head + 14),
        "log_start_offset": be64(head + 22),
        "aborted_transactions": [] if head[30] else None,
        "preferred_read_replica": <int32_t>be32(head + 31),
        "records": None if size < 0 else data[records - begin : records - begin + size],
        "diverging_epoch": {"epoch": -1, "end_offset": -1},
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
        "snapshot_id": {"end_offset": -1, "epoch": -1},
    }


cdef object read_answer(data, const uint8_t *begin, const uint8_t *stop):
    cdef const uint8_t *at = begin + 10
    cdef const uint8_t *name
    cdef Py_ssize_t topics, parts
    if stop - begin < 11:
        return None
    topics = compact_length(&at, stop)
    if topics < 0:
        return None
    responses = []
    for _ in range(topics):
        name = at
        at += 16
        if stop - name < 17 or (parts := compact_length(&at, stop)) < 0:
            return None
        entries = []
        for _ in range(parts):
            entry = read_part(data, begin, &at, stop)
            if entry is None:
                return None
            entries.append(entry)
        if at >= stop or at[0]:
            return None
        at += 1
        responses.append({"topic_id": name[:16], "partitions": entries, "topic": ""})
    if stop - at != 1 or at[0]:
        return None
    return {
        "throttle_time_ms": <int32_t>be32(begin),
        "error_code": <int16_t>((begin[4] << 8) | begin[5]),
        "session_id": <int32_t>be32(begin + 6),
        "responses": responses,
        "node_endpoints": [],
    }


def read_plain_fetch(data not None):
    """The answer in ``data``, a memoryview, as the table's reader gives it; None: not a plain one, or damaged."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return read_answer(data, <const uint8_t *>view.buf, <const uint8_t *>view.buf + view.len)
    finally:
        PyBuffer_Release(&view)


cdef bytes write_request(int version, dict body):
    cdef uint8_t room[ROOM]
    cdef uint8_t *at = room
    cdef const char *name
    cdef dict entry
    cdef list topics = body["topics"], entries
    if len(body["forgotten_topics_data"]) or body["rack_id"] != "" or len(topics) > 20:
        return None
    if body.get("replica_id", -1) != -1 or "cluster_id" in body or "replica_state" in body:
        return None
    if version < 15:
        at = put32(at, -1)
    at = put32(put32(put32(at, body["max_wait_ms"]), body["min_bytes"]), body["max_bytes"])
    at[0] = <uint8_t><int8_t>body["isolation_level"]
    at = put32(put32(at + 1, body["session_id"]), body["session_epoch"])
    at[0] = <uint8_t>(len(topics) + 1)
    at += 1
    for topic in topics:
        entries, identity = topic["partitions"], topic["topic_id"]
        if len(entries) > 100 or room + ROOM - at < 32 + len(entries) * PART_BYTES:
            return None
        if not isinstance(identity, bytes) or len(<bytes>identity) != 16:
            return None
        name = <bytes>identity
        memcpy(at, name, 16)
        at[16] = <uint8_t>(len(entries) + 1)
        at += 17
        for entry in entries:
            if len(entry) != 6:
                return None
            at = put32(put32(at, entry["partition"]), entry["current_leader_epoch"])
            at = put32(put64(at, entry["fetch_offset"]), entry["last_fetched_epoch"])
            at = put32(put64(at, entry["log_start_offset"]), entry["partition_max_bytes"])
            at[0] = 0
            at += 1
        at[0] = 0
        at += 1
    at[0], at[1], at[2] = 1, 1, 0    # nothing forgotten, no rack, no tagged fields
    return room[: at + 3 - room]


def write_plain_fetch(int version, dict body not None):
    """The bytes of a request; None: not a plain one, or a long one."""
    try:
        return write_request(version, body)
    except (LookupError, OverflowError, TypeError):
        return None
