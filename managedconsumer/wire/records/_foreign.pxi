def messages_of(PartitionContext context, list lot):
    """The messages of librdkafka in ``lot`` as ours, the last one first, and their size, see ``_message_py``."""
    cdef Message message
    cdef int kind
    cdef long long timestamp
    cdef list made = []
    cdef Py_ssize_t size = 0
    if not lot:
        return made, size
    kind_of_all = type(lot[0])  # methods are looked up once
    value_of, key_of, headers_of = kind_of_all.value, kind_of_all.key, kind_of_all.headers
    timestamp_of, offset_of, epoch_of = kind_of_all.timestamp, kind_of_all.offset, kind_of_all.leader_epoch
    for theirs in reversed(lot):
        kind, timestamp = timestamp_of(theirs)
        message = Message.__new__(Message)
        message._value = value_of(theirs)
        message._key = key_of(theirs)
        message._headers = headers_of(theirs)
        message._context = context
        message.offset = offset_of(theirs)
        message.timestamp = timestamp if kind else 0
        message.timestamp_type = kind - 1
        epoch = epoch_of(theirs)
        message.leader_epoch = -1 if epoch is None else epoch
        message.protocol_version = 2
        if message._value is not None:
            size += len(message._value)
        made.append(message)
    return made, size


def runs_of(list lot):
    """Return the messages of one partition without a break, see ``_message_py``."""
    cdef list runs = [], run = None
    cdef long partition, last = -1
    place = None
    if not lot:
        return runs
    kind_of_all = type(lot[0])
    error_of, topic_of, partition_of = kind_of_all.error, kind_of_all.topic, kind_of_all.partition
    for message in lot:
        error = error_of(message)
        topic = topic_of(message)
        partition = partition_of(message)
        if error is not None or topic is None:
            runs.append((topic, partition, error, [message]))
            run = None
            continue
        if run is None or partition != last or topic != place:
            run, last, place = [], partition, topic
            runs.append((topic, partition, None, run))
        run.append(message)
    return runs
