@cython.final
cdef class PartitionContext:
    """The values that all messages of a partition share: the topic's name, its number, the user's object."""

    cdef public object topic
    cdef public int partition_id
    cdef public object partition
    cdef public object topic_id
    cdef public bint fenced

    def __init__(self, topic, int partition_id, partition=None, topic_id=None):
        self.topic = topic
        self.partition_id = partition_id
        self.partition = partition
        self.topic_id = topic_id

    def __repr__(self):
        return f"PartitionContext({self.topic!r}, {self.partition_id})"


cdef object _TIMES = None  # the module datetime, imported at the first use: it takes a millisecond
cdef object _EPOCH = None


cdef object _times():
    global _TIMES, _EPOCH
    if _TIMES is None:
        import datetime

        _EPOCH = datetime.datetime(1970, 1, 1)
        _TIMES = datetime
    return _TIMES


cdef class Message


cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        const char *name
        int type
        Py_ssize_t offset
        int flags
        const char *doc
    int T_OBJECT_EX

cdef extern from "Python.h":
    object PyDescr_NewMember(type cls, PyMemberDef *member)

cdef extern from *:
    """
    #define mc_value_place(message) ((char *)&(message)->_value - (char *)(message))
    #define mc_key_place(message) ((char *)&(message)->_key - (char *)(message))
    """
    Py_ssize_t mc_value_place(Message message)
    Py_ssize_t mc_key_place(Message message)

# Attributes that the interpreter reads in place, as __slots__ of a Python class. Cython gives a public attribute a getter
# function, which every read has to find and to call: 10 ns of the 100 that a message takes.
cdef PyMemberDef _VALUE = PyMemberDef(
    b"value", T_OBJECT_EX, mc_value_place(<Message>None), 0, b"The record's value: bytes, or None for a tombstone."
)
cdef PyMemberDef _KEY = PyMemberDef(
    b"partition_key", T_OBJECT_EX, mc_key_place(<Message>None), 0, b"The record's key: bytes, or None."
)


@cython.final
@cython.freelist(1024)
@cython.no_gc
cdef class Message:
    """One record as a user holds it: pykafka's attributes, and Kafka's newer ones (see ``_message_py``)."""

    cdef object _value
    cdef object _key
    cdef PartitionContext _context
    cdef object _headers  # None, bytes not looked at yet, or the list
    cdef public long long offset
    cdef public long long timestamp
    cdef readonly int leader_epoch
    cdef readonly signed char timestamp_type
    cdef readonly signed char protocol_version

    value = PyDescr_NewMember(Message, &_VALUE)
    partition_key = PyDescr_NewMember(Message, &_KEY)
    # Pykafka has these for producing; on a consumed message they are constant.
    compression_type = 0
    produce_attempt = 0
    delivery_report_q = None

    def __init__(
        self,
        value,
        partition_key=None,
        *,
        offset=-1,
        timestamp=None,
        headers=(),
        topic="",
        partition_id=-1,
        partition=None,
        timestamp_type=0,
        leader_epoch=-1,
        protocol_version=2,
        topic_id=None,
    ):
        self._value = value
        self._key = partition_key
        self.offset = offset
        self._headers = list(headers) or None
        self._context = PartitionContext(topic, partition_id, partition, topic_id)
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch
        self.protocol_version = protocol_version
        if timestamp is None or isinstance(timestamp, int):
            self.timestamp = timestamp or 0
        elif isinstance(timestamp, _times().datetime):
            self.timestamp_dt = timestamp
        else:
            self.timestamp = timestamp or 0

    @property
    def key(self):
        """Kafka's name for ``partition_key``."""
        return get_key(self)

    @key.setter
    def key(self, key):
        self._key = key

    @property
    def headers(self):
        """The record's headers in order; empty if it has none.  The list is the message's own."""
        if type(self._headers) is bytes:
            self._headers = read_headers(self._headers)
        elif self._headers is None:
            self._headers = []
        return self._headers

    @headers.setter
    def headers(self, headers):
        self._headers = list(headers)

    @property
    def fenced(self):
        """True once the consumer has given the message's partition up, or lost it: another consumer may have it."""
        return self._context.fenced

    @property
    def topic(self):
        """The topic's name."""
        return self._context.topic

    @property
    def topic_id(self):
        """The id of the topic that it was read from; None where it is not known, as before Kafka 2.8."""
        return self._context.topic_id

    @property
    def partition_id(self):
        """The partition's number."""
        return self._context.partition_id

    @partition_id.setter
    def partition_id(self, partition_id):
        cdef PartitionContext old = self._context
        self._context = PartitionContext(old.topic, partition_id, old.partition, old.topic_id)

    @property
    def partition(self):
        """The partition object of the consumer that read this message; None for a message made by hand."""
        return self._context.partition

    @partition.setter
    def partition(self, partition):
        cdef PartitionContext old = self._context
        self._context = PartitionContext(old.topic, old.partition_id, partition, old.topic_id)

    @property
    def timestamp_dt(self):
        """The timestamp as a datetime in UTC without a time zone; None where there is none, or no calendar has it."""
        if self.timestamp <= 0:
            return None
        times = _times()
        try:
            return _EPOCH + times.timedelta(milliseconds=self.timestamp)
        except OverflowError:
            return None

    @timestamp_dt.setter
    def timestamp_dt(self, value):
        times = _times()
        self.timestamp = (value - _EPOCH) // times.timedelta(milliseconds=1)

    def __len__(self):
        cdef Py_ssize_t size = 14
        value, key = get_value(self), get_key(self)
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if self.protocol_version > 0 and self.timestamp:
            size += 8
        return size

    def __bool__(self):
        return True

    def __repr__(self):
        from managedconsumer.wire.records._message_py import shown_of

        return shown_of(self)

    def __reduce__(self):
        """Copies and pickles hold everything but ``partition``, which belongs to a live consumer."""
        from managedconsumer.wire.records import rebuild_message

        return rebuild_message, (
            *(get_value(self), get_key(self), self.offset, self.timestamp, self.headers or None),
            *(self.topic, self.partition_id, self.timestamp_type, self.leader_epoch, self.protocol_version),
            self.topic_id,
        )


# ``del message.value`` leaves no reference at all, as with __slots__; in here that reads as None.
cdef inline object get_value(Message message):
    return None if <void *>message._value == NULL else message._value


cdef inline object get_key(Message message):
    return None if <void *>message._key == NULL else message._key


cdef list read_headers(bytes raw):
    """Decode a record's headers, from their count on; they were checked when the record was read."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(raw)
    cdef const uint8_t *name = NULL
    cdef const uint8_t *content = NULL
    cdef Py_ssize_t name_size = 0, content_size = 0
    cdef int64_t count = 0
    cdef list headers = []
    p = read_varint(p, end, 5, &count)
    while count > 0:
        p = read_field(p, end, &name, &name_size)
        p = read_field(p, end, &content, &content_size)
        headers.append(((<const char *>name)[:name_size].decode("utf-8", "replace"), to_bytes(content, content_size)))
        count -= 1
    return headers


def extents_of(messages):
    """The first and the last offset of each partition's messages, see ``_message_py``."""
    cdef dict found = {}
    cdef PartitionContext context = None, other
    cdef long long offset, first = 0, last = 0
    cdef tuple place = None, there
    for one in messages:
        if type(one) is Message:
            offset, other = (<Message>one).offset, (<Message>one)._context
            if other is context or (
                context is not None and other.partition_id == context.partition_id and other.topic is context.topic
            ):
                if offset > last:
                    last = offset
                elif offset < first:
                    first = offset
                continue
            context, there = other, (other.topic, other.partition_id)
        else:
            offset, context, there = one.offset, None, (one.topic, one.partition_id)
        if there != place:
            if place is not None:
                found[place] = (first, last)
            place = there
            first, last = found.get(place, (offset, offset))
        first, last = min(first, offset), max(last, offset)
    if place is not None:
        found[place] = (first, last)
    return found


def topic_ids_of(messages):
    """The ids of the topics that each partition's messages were read from, see ``_message_py``."""
    cdef dict found = {}
    cdef PartitionContext context = None
    for one in messages:
        if type(one) is not Message or (<Message>one)._context is context:
            continue
        context = (<Message>one)._context
        if context.topic_id is not None:
            ids = found.setdefault((context.topic, context.partition_id), [])
            if context.topic_id not in ids:
                ids.append(context.topic_id)
    return found


cdef inline object to_bytes(const uint8_t *field, Py_ssize_t size):
    if field == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char *>field, size)
