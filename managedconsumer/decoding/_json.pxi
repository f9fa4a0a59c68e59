# Values of JSON. Included by _columns.pyx. Anything unusual is an error here: Arrow's own reader decides then.

cdef enum:
    DEEPEST = 64                # nesting of a value that no column takes
    LONGEST = 48                # a number that is not exact

cdef uint64_t ONES = 0x0101010101010101, HIGH_BITS = 0x8080808080808080
# Powers of ten that a double has without an error.
cdef double[23] TENS
TENS[:] = [10.0 ** power for power in range(23)]
cdef const uint8_t *ESCAPES = b'"\\/bfnrt'
cdef const uint8_t *ESCAPED = b'"\\/\b\f\n\r\t'
cdef int[13] MONTH_DAYS
MONTH_DAYS[:] = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

cdef struct Number:
    uint64_t digits             # without the point
    int power                   # of ten, that the digits are multiplied by
    bint negative, whole
    const uint8_t *start


cdef void step_over_spaces(Wire *wire) noexcept:
    while wire.place < wire.end and wire.place[0] in (32, 10, 13, 9):
        wire.place += 1


cdef inline int next_byte(Wire *wire) except -1:
    """Return the byte behind the white space; it is not yet taken."""
    if wire.place < wire.end and wire.place[0] > 32:
        return wire.place[0]
    step_over_spaces(wire)
    if wire.place == wire.end:
        raise ValueError("the value ends too early")
    return wire.place[0]


cdef int expect(Wire *wire, const char *word, int size) except -1:
    if wire.end - wire.place < size or memcmp(wire.place, word, size) != 0:
        raise ValueError("the value has another word")
    wire.place += size
    return 0


cdef int opened(Wire *wire, int opening) except -1:
    """Take the beginning of an object or array. Returns whether anything is in it."""
    if next_byte(wire) != opening:
        raise ValueError("a value of another type")
    wire.place += 1
    if next_byte(wire) != opening + 2:
        return True
    wire.place += 1
    return False


cdef int goes_on(Wire *wire, int opening) except -1:
    """Take what is behind an item of an object or array. Returns whether there is another one."""
    cdef int byte = next_byte(wire)
    if byte != c"," and byte != opening + 2:
        raise ValueError("no comma and no end behind an item")
    wire.place += 1
    return byte == c","


cdef int64_t plain_bytes(Wire *wire) except -1:
    """Step to the end of a string, or to a backslash in it; return the number of bytes, which are UTF-8."""
    cdef const uint8_t *start = wire.place
    cdef const uint8_t *place = start
    cdef const uint8_t *end = wire.end
    cdef uint64_t word, quotes, slashes, seen = 0
    while end - place >= 8:
        memcpy(&word, place, 8)
        quotes, slashes = word ^ (ONES * c'"'), word ^ (ONES * c"\\")
        if (
            ((word - ONES * 32) & ~word) | ((quotes - ONES) & ~quotes) | ((slashes - ONES) & ~slashes)
        ) & HIGH_BITS:
            break
        seen |= word
        place += 8
    while place < end and place[0] != c'"' and place[0] != c"\\":
        if place[0] < 32:
            raise ValueError("a control character in a string")
        seen |= place[0]
        place += 1
    if place == end:
        raise ValueError("the value ends inside a string")
    if seen & HIGH_BITS:
        check_text(start, place - start)
    wire.place = place
    return place - start


cdef int read_code(Wire *wire) except -1:
    """Read four hexadecimal digits."""
    cdef int code = 0, byte, i
    if wire.end - wire.place < 4:
        raise ValueError("the value ends inside an escape")
    for i in range(4):
        byte = wire.place[i]
        if c"0" <= byte <= c"9":
            byte -= c"0"
        elif c"a" <= byte | 32 <= c"f":
            byte = (byte | 32) - c"a" + 10
        else:
            raise ValueError("an escape that is no number")
        code = code << 4 | byte
    wire.place += 4
    return code


cdef int read_escape(Wire *wire, uint8_t *out) except -1:
    """Read an escape; write its character to ``out`` and return the number of bytes, at most four."""
    cdef int code, low, size, i
    wire.place += 1
    if wire.place == wire.end:
        raise ValueError("the value ends inside an escape")
    code = wire.place[0]
    wire.place += 1
    for i in range(8):
        if ESCAPES[i] == code:
            out[0] = ESCAPED[i]
            return 1
    if code != c"u":
        raise ValueError("no such escape")
    code = read_code(wire)
    if 0xD800 <= code < 0xE000:
        expect(wire, b"\\u", 2)
        low = read_code(wire)
        if code >= 0xDC00 or not 0xDC00 <= low < 0xE000:
            raise ValueError("half of a character")
        code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
    if code < 0x80:
        out[0] = <uint8_t>code
        return 1
    size = 2 + (code >= 0x800) + (code >= 0x10000)
    for i in range(size - 1, 0, -1):
        out[i] = <uint8_t>(0x80 | (code & 0x3F))
        code >>= 6
    out[0] = <uint8_t>(0xF00 >> size | code)
    return size


cdef int64_t read_plain(Wire *wire, const uint8_t **start) except -1:
    """Read a string without escapes; return its size."""
    cdef int64_t size
    expect(wire, b'"', 1)
    start[0] = wire.place
    size = plain_bytes(wire)
    expect(wire, b'"', 1)
    return size


cdef int read_string(Wire *wire, Bytes column) except -1:
    """Read a string into the next row of ``column``; None: nowhere."""
    cdef const uint8_t *start
    cdef uint8_t[4] character
    cdef int64_t size
    expect(wire, b'"', 1)
    while True:
        start = wire.place
        size = plain_bytes(wire)
        if column is not None:
            column.put(start, size)
        if wire.place[0] == c'"':
            wire.place += 1
            return 0
        size = read_escape(wire, character)
        if column is not None:
            column.put(character, size)


cdef int64_t read_digits(Wire *wire, uint64_t *digits) except -1:
    """Read one digit or more, and append them to ``digits``: 19, and zeros before them. Returns how many were read."""
    cdef const uint8_t *place = wire.place
    cdef int64_t size
    cdef uint64_t found = digits[0]
    while place < wire.end and c"0" <= place[0] <= c"9":
        if found > (UINT64_MAX - 9) // 10:
            raise ValueError("a number with many digits")
        found = found * 10 + (place[0] - c"0")
        place += 1
    size, wire.place, digits[0] = place - wire.place, place, found
    if size == 0:
        raise ValueError("no digit where one must be")
    return size


cdef int read_number(Wire *wire, Number *found) except -1:
    cdef uint64_t exponent = 0
    cdef bint negative
    found.start, found.digits, found.power, found.whole = wire.place, 0, 0, True
    found.negative = wire.place[0] == c"-"
    wire.place += found.negative
    if wire.place < wire.end and wire.place[0] == c"0":
        wire.place += 1
    else:
        read_digits(wire, &found.digits)
    if wire.place < wire.end and wire.place[0] == c".":
        wire.place += 1
        found.power, found.whole = <int>-read_digits(wire, &found.digits), False
    if wire.place < wire.end and wire.place[0] | 32 == c"e":
        wire.place += 1
        negative = wire.place < wire.end and wire.place[0] == c"-"
        wire.place += negative or (wire.place < wire.end and wire.place[0] == c"+")
        if read_digits(wire, &exponent) > 2:
            raise ValueError("a number with a long exponent")
        found.power, found.whole = found.power + <int>(-exponent if negative else exponent), False
    return 0


cdef int step_over(Wire *wire, int depth) except -1:
    """Step over a value that no column takes."""
    cdef int opening = next_byte(wire), more
    cdef Number number
    if opening == c'"':
        read_string(wire, None)
    elif opening == c"{" or opening == c"[":
        if depth == DEEPEST:
            raise ValueError("a value with deep nesting")
        more = opened(wire, opening)
        while more:
            if opening == c"{":
                next_byte(wire)
                read_string(wire, None)
                next_byte(wire)
                expect(wire, b":", 1)
            step_over(wire, depth + 1)
            more = goes_on(wire, opening)
    elif opening == c"t":
        expect(wire, b"true", 4)
    elif opening == c"f":
        expect(wire, b"false", 5)
    elif opening == c"n":
        expect(wire, b"null", 4)
    else:
        read_number(wire, &number)
    return 0


cdef int take_value(Wire *wire, Column column) except -1:
    """Append the next value to ``column``."""
    if next_byte(wire) != c"n":
        return column.take(wire)
    expect(wire, b"null", 4)
    return column.append_null()


cdef class JsonInteger(Fixed):
    """Whole numbers of 8, 16, 32 or 64 bits."""

    def __init__(self, pa, kind):
        Column.__init__(self, pa, kind)
        self.width = kind.bit_width // 8

    cdef int read(self, Wire *wire) except -1:
        cdef Number number
        read_number(wire, &number)
        if not number.whole or number.digits > (<uint64_t>1 << (8 * self.width - 1)) - (not number.negative):
            raise ValueError("a number with a fraction, or out of range")
        return self.store(-number.digits if number.negative else number.digits, NULL)


cdef class JsonReal(Real):
    """A ``double``: the one nearest to the number."""

    cdef int read(self, Wire *wire) except -1:
        cdef Number number
        cdef double value
        cdef char[LONGEST] text
        read_number(wire, &number)
        if number.digits <= <uint64_t>1 << 53 and -22 <= number.power <= 22:  # two exact numbers: rounded once
            value = <double>number.digits
            value = value / TENS[-number.power] if number.power < 0 else value * TENS[number.power]
            if number.negative:
                value = -value
        elif wire.place - number.start >= LONGEST:
            raise ValueError("a long number")
        else:
            memcpy(text, number.start, wire.place - number.start)
            text[wire.place - number.start] = 0
            value = PyOS_string_to_double(text, NULL, NULL)
        (<double *>self.data.start)[self.rows] = value
        return 0


cdef class JsonBoolean(Boolean):
    cdef int read(self, Wire *wire) except -1:
        cdef bint true = wire.place[0] == c"t"
        expect(wire, b"true" if true else b"false", 4 if true else 5)
        self.put(true)
        return 0


cdef class JsonString(Bytes):
    cdef int read(self, Wire *wire) except -1:
        return read_string(wire, self)


cdef int two_digits(const uint8_t *place) noexcept:
    """Return the number; below -100 if these are no digits."""
    cdef int ten = place[0] - 48, one = place[1] - 48
    return ten * 10 + one if 0 <= ten <= 9 and 0 <= one <= 9 else -100_000


cdef int64_t read_day(const uint8_t *text) except? -1:
    """Read ``2026-01-02``; return the days from 1970 on."""
    cdef int64_t year
    cdef int month, day, days
    year, month, day = two_digits(text) * 100 + two_digits(text + 2), two_digits(text + 5), two_digits(text + 8)
    if year < 1 or not 1 <= month <= 12 or text[4] != c"-" or text[7] != c"-":
        raise ValueError("a date in another format")
    days = MONTH_DAYS[month] + (month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))
    if not 1 <= day <= days:
        raise ValueError("no such day")
    year -= month <= 2  # a year from March on: the leap day is its last
    month += 9 if month <= 2 else -3
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719469


cdef class JsonDay(Fixed):
    """A date: days, of ``2026-01-02``."""

    def __init__(self, pa, kind):
        Column.__init__(self, pa, kind)
        self.width = 4

    cdef int read(self, Wire *wire) except -1:
        cdef const uint8_t *text
        if read_plain(wire, &text) != 10:
            raise ValueError("a date in another format")
        return self.store(read_day(text), NULL)


cdef class JsonMoment(Long):
    """A timestamp in microseconds, of ``2026-01-02T03:04:05``, with a fraction of a second or without, and a zone."""

    cdef int read(self, Wire *wire) except -1:
        cdef const uint8_t *text
        cdef int64_t size = read_plain(wire, &text), value, scale = 1_000_000
        cdef int hour, minute, second, behind = 0, sign
        if size < 19 or (text[10] != c"T" and text[10] != c" ") or text[13] != c":" or text[16] != c":":
            raise ValueError("a timestamp in another format")
        hour, minute, second = two_digits(text + 11), two_digits(text + 14), two_digits(text + 17)
        if not 0 <= hour < 24 or not 0 <= minute < 60 or not 0 <= second < 60:
            raise ValueError("no such time")
        value = read_day(text) * 86400 + hour * 3600 + minute * 60 + second
        text += 19
        size -= 19
        if size > 1 and text[0] == c".":
            text += 1
            size -= 1
            while size > 0 and c"0" <= text[0] <= c"9" and scale > 1:
                behind = behind * 10 + text[0] - 48
                scale //= 10
                text += 1
                size -= 1
            if scale == 1_000_000:
                raise ValueError("a timestamp in another format")
        if size == 6 and (text[0] == c"+" or text[0] == c"-") and text[3] == c":":
            sign, hour, minute = 1 if text[0] == c"+" else -1, two_digits(text + 1), two_digits(text + 4)
            if not 0 <= hour < 24 or not 0 <= minute < 60:
                raise ValueError("no such zone")
            value -= sign * (hour * 3600 + minute * 60)
        elif size > 1 or (size == 1 and text[0] != c"Z"):
            raise ValueError("a timestamp in another format")
        (<int64_t *>self.data.start)[self.rows] = value * 1_000_000 + behind * scale
        return 0


cdef class JsonArray(Blocks):
    cdef int read(self, Wire *wire) except -1:
        cdef int more = opened(wire, c"[")
        while more:
            take_room(wire, 1, self.weight)
            take_value(wire, self.items)
            more = goes_on(wire, c"[")
        (<int32_t *>self.offsets.start)[self.rows + 1] = <int32_t>self.items.rows
        return 0


cdef struct Name:
    const uint8_t *start
    int64_t size, read_in       # read_in: the number of the object that had this field last


cdef class JsonObject(Record):
    """A struct of the fields that have a column, by ``names``. The values of others are stepped over."""

    cdef list names
    cdef dict places
    cdef Name *known
    cdef int count
    cdef int64_t objects

    def __init__(self, pa, kind, *, list fields, list names):
        Record.__init__(self, pa, kind, fields=fields)
        self.names, self.count = names, len(names)
        self.places = {name: place for place, name in enumerate(names)}
        self.known = <Name *>PyMem_Calloc(self.count, sizeof(Name))
        if self.known == NULL:
            raise MemoryError
        for place, name in enumerate(names):
            self.known[place].start, self.known[place].size = <const uint8_t *><const char *><bytes>name, len(name)

    def __dealloc__(self):
        PyMem_Free(self.known)

    cdef int read(self, Wire *wire) except -1:
        cdef int place, expected = 0, more = opened(wire, c"{")
        self.objects += 1
        while more:
            place = self.read_name(wire, expected)
            if place < 0:
                step_over(wire, 0)
            elif self.known[place].read_in == self.objects:
                raise ValueError("a field twice")
            else:
                self.known[place].read_in = self.objects
                take_value(wire, <Column>self.fields[place])
                expected = place + 1
            more = goes_on(wire, c"{")
        for place in range(self.count):
            if self.known[place].read_in != self.objects:
                (<Column>self.fields[place]).append_null()
        step_over_spaces(wire)
        return 0

    cdef int read_name(self, Wire *wire, int expected) except -2:
        """Read a name with its colon. Returns the field's place, which is probably ``expected``; -1: it has none."""
        cdef const uint8_t *start
        cdef int64_t size
        cdef Name *known = self.known + expected
        next_byte(wire)
        size = read_plain(wire, &start)
        next_byte(wire)
        expect(wire, b":", 1)
        if expected < self.count and known.size == size and memcmp(known.start, start, size) == 0:
            return expected
        return self.places.get((<const char *>start)[:size], -1)
