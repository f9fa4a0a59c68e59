# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: embedsignature=True
"""Decode Avro, JSON and Protobuf into Arrow's buffers, field by field, without a Python object for a value.

``avro_shapes`` makes the columns of an Avro schema; ``avro_values`` decodes all else with fastavro, ``json_values`` with
Arrow's reader.  Every encoded length and number is checked before it is used; a bad value is removed from all columns again.
Sources: Avro 1.12 specification (binary encoding, logical types), RFC 8259, Protocol Buffers' encoding, Arrow Columnar
Format 1.x.
"""

from cpython.conversion cimport PyOS_string_to_double
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MAX, UINT32_MAX, UINT64_MAX, int32_t, int64_t, uint8_t, uint64_t, uintptr_t
)
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    typedef __int128 mc_int128;
    typedef unsigned __int128 mc_uint128;
    """
    ctypedef long long mc_int128
    ctypedef unsigned long long mc_uint128

from managedconsumer.decoding import avro_bounds, formats
from managedconsumer.decoding.formats import TooLargeError, told

INTERFACE = 4

include "../wire/records/_growing_buffer.pxi"
include "_avro_wire.pxi"
include "_avro_column.pxi"
include "_avro_flat.pxi"
include "_avro_nested.pxi"
include "_json.pxi"
include "_protobuf.pxi"

cdef enum:
    PREFIX = 5                  # of a schema registry: a zero, and the schema's id in four bytes

cdef int64_t MOST_BYTES = avro_bounds.MOST_BYTES, FOR_EACH_BYTE = avro_bounds.FOR_EACH_BYTE
cdef int64_t MOST_EMPTY_ITEMS = avro_bounds.MOST_EMPTY_ITEMS


class OtherSchemaError(Exception):
    """The value was written with another schema than the columns'."""


def decode(Column column not None, raw, written_so=None, int64_t weight=1):
    """Decode ``raw``, a binary array.  Returns the array, and the error of each bad row by its number.

    ``written_so``: each value begins with the id of a registry's schema.  It is called with each id that differs from
    the one before, and returns whether that is the columns' schema, or raises ValueError if there is none.  Raises
    OtherSchemaError for a value of another schema, TooLargeError for a batch that must be cut, and other errors of
    ``written_so``.  ``weight``: bytes of a value without items of arrays and maps (``avro_bounds.Size``).
    """
    cdef int64_t row, rows = len(raw), first = raw.offset, number, known = -1
    cdef int64_t used = 0, room, most = formats.BATCH_BYTES
    cdef const uint8_t *data = NULL
    cdef const int32_t *offsets = NULL
    cdef const uint8_t *valid = NULL
    cdef Wire wire
    cdef dict bad = {}
    marks, places, content = raw.buffers()
    column.begin(rows)
    if rows:
        offsets = <const int32_t *><uintptr_t>places.address + first
        data = <const uint8_t *><uintptr_t>content.address if content is not None else NULL
    if marks is not None:
        valid = <const uint8_t *><uintptr_t>marks.address
    for row in range(rows):
        if used > most and rows > 1:
            raise TooLargeError
        used += weight
        if valid != NULL and not valid[(first + row) >> 3] & (1 << ((first + row) & 7)):
            column.append_null()
            continue
        wire.place, wire.end = data + offsets[row], data + offsets[row + 1]
        room = wire.room = 0
        try:
            if written_so is not None:
                number = read_id(&wire)
                if number != known:
                    if not written_so(number):
                        raise OtherSchemaError
                    known = number
            wire.empty = MOST_EMPTY_ITEMS
            room = wire.room = MOST_BYTES + FOR_EACH_BYTE * (wire.end - wire.place)
            take_room(&wire, 1, weight)
            column.take(&wire)
            if wire.place != wire.end:
                raise ValueError(
                    f"{wire.end - wire.place} bytes are left: the value was written with another schema"
                )
        except (ValueError, OverflowError) as error:
            if rows > 1 and isinstance(error, OverflowError):
                raise TooLargeError from None
            column.cut(row)
            column.append_null()
            bad[row] = told(error)
        used += room - wire.room
    return column.done(), bad


cdef int64_t read_id(Wire *wire) except -1:
    """Read the id of a registry's schema."""
    cdef const uint8_t *place = wire.place
    if wire.end - place < PREFIX or place[0] != 0:
        raise ValueError("the value does not begin with a schema's id")
    wire.place += PREFIX
    return (<int64_t>place[1] << 24) | (<int64_t>place[2] << 16) | (<int64_t>place[3] << 8) | place[4]
