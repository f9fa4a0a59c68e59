# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: embedsignature=True
"""``Message`` and ``RecordChunk``, compiled: the twin of ``_records_py`` and ``_message_py``, about 15 times as fast.

Interface and meaning are described in ``managedconsumer.wire.records``; the loops over bytes are in the .pxd files.
Messages hold bytes of their own, so no message keeps a response's buffer alive.  They are not tracked by the garbage
collector (tracked ones cost twice the time): nothing reachable from a ``partition`` object may hold a message for
good, or that circle is never freed.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from managedconsumer.wire.records._recordcolumns cimport (
    AT_DAMAGE, AT_END, AT_STOP, FIRST_HEADERS, NO_KEY_ROOM, ODD_NAME, Binary, Columns, Count, Ending, copy_records, count_records,
)
from managedconsumer.wire.records._recordread cimport (
    BELOW, GOOD, MISPLACED, Cursor, Outcome, View, read_field, read_record, read_varint,
)
from managedconsumer.wire.records._recordwalk cimport (
    CODEC_MASK, CONTROL, HEADER_BYTES, LOG_APPEND_TIME, MIN_RECORD_BYTES, SOUND, TRANSACTIONAL, UNPACKS_TO, Batch, Walk,
    mc_crc32c, mc_crc32c_portable, mc_crc_init, walk_batches,
)

from weakref import ref

from managedconsumer.errors import CorruptRecordError, MissingPackageError
from managedconsumer.wire.records import compression
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.arrow import constant
from managedconsumer.wire.records.legacy import BadMessageError, decode_entry

INTERFACE = 16
IMPLEMENTATION = "cython"

mc_crc_init()


def crc32c(const uint8_t[::1] data not None, uint32_t value=0, bint portable=False):
    """The CRC-32C of ``data``, continued from ``value``; ``portable``: without the processor's instruction."""
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    if portable:
        return mc_crc32c_portable(start, data.shape[0], value)
    return mc_crc32c(start, data.shape[0], value)


include "_message.pxi"
include "_batches.pxi"
include "_chunk.pxi"
include "_oddbatches.pxi"
include "_growing_buffer.pxi"
include "_columns.pxi"
include "_lane.pxi"
include "_foreign.pxi"
