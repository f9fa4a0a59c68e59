# Messages of Protobuf. Included by _columns.pyx. Anything unusual is an error here: Protobuf's own package decides then.

cdef enum:                      # wire types, and how a varint becomes a number
    VARINT = 0
    EIGHT_BYTES = 1
    SIZED = 2
    FOUR_BYTES = 5
    ZIGZAG = 1
    UNSIGNED_32 = 2

cdef struct Slot:
    int number, wire_type, form
    bint optional, seen
    uint64_t value              # or a size
    const uint8_t *start


cdef int read_varint(Wire *wire, uint64_t *value) except -1:
    cdef uint64_t byte
    cdef int shift
    value[0] = 0
    for shift in range(0, 64, 7):
        if wire.place == wire.end:
            break
        byte = wire.place[0]
        wire.place += 1
        value[0] |= (byte & 0x7F) << shift
        if byte < 0x80 and (shift < 63 or byte <= 1):
            return 0
    raise ValueError("the message ends inside a number, or a number is too long")


cdef class Message(Record):
    """A message of single fields. ``slots``: number, wire type, form and whether it may be null, for each field."""

    cdef Slot *slots
    cdef int count

    def __init__(self, pa, kind, *, list fields, list slots):
        Record.__init__(self, pa, kind, fields=fields)
        self.count = len(slots)
        self.slots = <Slot *>PyMem_Calloc(self.count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        for place, (number, wire_type, form, optional) in enumerate(slots):
            self.slots[place].number, self.slots[place].wire_type = number, wire_type
            self.slots[place].form, self.slots[place].optional = form, optional

    def __dealloc__(self):
        PyMem_Free(self.slots)

    cdef int read(self, Wire *wire) except -1:
        cdef int place, wire_type, at = -1
        cdef uint64_t tag, value
        cdef const uint8_t *start
        cdef Slot *slot
        for place in range(self.count):
            self.slots[place].seen = False
        while wire.place < wire.end:
            read_varint(wire, &tag)
            if tag > UINT32_MAX or tag < 8:
                raise ValueError("no field has this number")
            wire_type = tag & 7
            start = wire.place
            if wire_type == VARINT:
                read_varint(wire, &value)
            elif wire_type == SIZED:
                read_varint(wire, &value)
                start = wire.place
                if value > <uint64_t>(wire.end - start):
                    raise ValueError("the message ends inside a field")
                wire.place += value
            elif wire_type in (EIGHT_BYTES, FOUR_BYTES):
                value = 0
                place = 8 if wire_type == EIGHT_BYTES else 4
                if wire.end - start < place:
                    raise ValueError("the message ends inside a number")
                memcpy(&value, start, place)
                wire.place += place
            else:
                raise ValueError("a group")
            for place in range(1, self.count + 1):  # fields come in their order nearly always
                slot = &self.slots[(at + place) % self.count]
                if slot.number == <int64_t>(tag >> 3):
                    if slot.wire_type != wire_type or (slot.seen and wire_type == SIZED):
                        raise ValueError("a field of another type, or twice")
                    slot.value, slot.start, slot.seen, at = value, start, True, (at + place) % self.count
                    break
        for place in range(self.count):
            slot = &self.slots[place]
            if slot.seen:
                if slot.form & UNSIGNED_32:
                    slot.value &= 0xFFFFFFFF
                if slot.form & ZIGZAG:
                    slot.value = (slot.value >> 1) ^ -(slot.value & 1)
            elif slot.optional:
                (<Column>self.fields[place]).append_null()
                continue
            else:
                slot.value, slot.start = 0, wire.end
            (<Column>self.fields[place]).append_stored(slot.value, slot.start)
        return 0

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        cdef Wire inner
        inner.place, inner.end = start, start + value
        return self.read(&inner)


cdef class Names(Bytes):
    """An enum of Protobuf by name. ``names``: by number."""

    cdef dict names

    def __init__(self, pa, kind, *, dict names):
        Bytes.__init__(self, pa, kind)
        self.names = {number: name.encode() for number, name in names.items()}

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        cdef bytes name = self.names.get(<int32_t>value)
        if name is None:
            raise ValueError("a number without a name")
        return self.put(<const uint8_t *><const char *>name, len(name))


cdef class Moment(Long):
    """A timestamp of Protobuf in microseconds."""

    cdef int store(self, uint64_t value, const uint8_t *start) except -1:
        cdef uint64_t tag, seconds = 0, nanos = 0
        cdef Wire inner
        inner.place, inner.end = start, start + value
        while inner.place < inner.end:
            read_varint(&inner, &tag)
            if tag == 8:
                read_varint(&inner, &seconds)
            elif tag == 16:
                read_varint(&inner, &nanos)
            else:
                raise ValueError("a field that no timestamp has")
        if not FIRST_DAY * 86400 <= <int64_t>seconds < (LAST_DAY + 1) * 86400 or nanos >= 1000000000:
            raise ValueError("the timestamp is not in the years 1 to 9999")
        (<int64_t *>self.data.start)[self.rows] = <int64_t>seconds * 1000000 + <int64_t>nanos // 1000
        return 0
