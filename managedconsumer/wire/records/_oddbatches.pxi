# A RecordChunk's way through unusual batches: damaged ones, aborted transactions, old formats.


cdef int64_t after_corrupt(RecordChunk chunk, Batch *batch):
    cdef Batch *following
    if batch.bad == SOUND:
        return batch.last_offset + 1  # the header is sound, a record within is not
    if chunk._index + 1 < chunk._walk.used:
        following = &chunk._walk.batches[chunk._index + 1]
        if following.bad == SOUND and following.base_offset >= chunk.position:
            return following.base_offset
    if (
        batch.count > 0
        and batch.last_offset >= chunk.position
        and <int64_t>(<uint64_t>batch.last_offset - <uint64_t>batch.base_offset) == batch.count - 1
    ):
        return batch.last_offset + (batch.last_offset < INT64_MAX)
    # Its own words cannot be trusted, and jumping too far would lose records: one offset at a time.
    return chunk.position + (chunk.position < INT64_MAX)


cdef bint is_aborted(RecordChunk chunk, Batch *batch) except -1:
    """Whether the batch belongs to a transaction that was given up.  Called for each batch, in order (KIP-98)."""
    while chunk._aborted and chunk._aborted[len(chunk._aborted) - 1][1] <= batch.last_offset:
        chunk._aborting.add(chunk._aborted.pop()[0])
    if batch.magic < 2:
        return False
    if batch.attributes & CONTROL:
        if batch.count > 0 and is_abort_marker(batch.attributes & CODEC_MASK, chunk._slice(batch)):  # or compacted away
            chunk._aborting.discard(batch.producer_id)
        return False
    return batch.attributes & TRANSACTIONAL != 0 and batch.producer_id in chunk._aborting


cdef int open_legacy(RecordChunk chunk, Batch *batch) except -1:
    cdef Message message
    cdef list made = []
    for record in reversed(decode_entry(chunk._slice(batch), chunk._max_batch_bytes, chunk._beside)):
        if record.offset >= chunk.position:
            message = Message.__new__(Message)
            message._value, message._key = record.value, record.key
            message._context = chunk.context
            message.offset, message.timestamp = record.offset, record.timestamp
            message.leader_epoch = -1
            message.timestamp_type, message.protocol_version = record.timestamp_type, record.magic
            made.append(message)
    for message in made:
        chunk._unpacked += len(message._value or b"")
    chunk._ready = made
    return 0
