def messages_of(PartitionContext context, list lot, long long first_offset, epoch):
    """The messages of librdkafka in ``lot`` as ours, the last one first, see ``_message_py``."""
    cdef Message message
    cdef Py_ssize_t place
    cdef int kind
    cdef long long timestamp
    cdef list made = []
    for place in range(len(lot) - 1, -1, -1):
        theirs = lot[place]
        stamp = theirs.timestamp()
        kind, timestamp = stamp
        message = Message.__new__(Message)
        message.value = theirs.value()
        message.partition_key = theirs.key()
        message._headers = theirs.headers()
        message._context = context
        message.offset = theirs.offset() if first_offset < 0 else first_offset + place
        message.timestamp = timestamp if kind else 0
        message.timestamp_type = kind - 1
        message.leader_epoch = epoch_of(theirs) if epoch is None else epoch
        message.protocol_version = 2
        made.append(message)
    return made


cdef int epoch_of(theirs) except? -1:
    epoch = theirs.leader_epoch()
    return -1 if epoch is None else epoch


def runs_of(list lot):
    """What came of one partition without a break, see ``_message_py``."""
    cdef list runs = [], run = None
    cdef long partition, last = -1
    place = None
    for message in lot:
        error = message.error()
        topic = message.topic()
        if error is not None or topic is None:
            runs.append((topic, message.partition(), error, [message]))
            run = None
            continue
        partition = message.partition()
        if run is None or partition != last or topic != place:
            run, last, place = [], partition, topic
            runs.append((topic, partition, None, run))
        run.append(message)
    return runs
