# Included by _records.pyx and by managedconsumer/decoding/_columns.pyx.
cdef class _GrowingBuffer:
    """One growing Arrow buffer.  It lives in pyarrow's memory pool, which hands pages out again warm."""

    cdef object buffer
    cdef uint8_t *start
    cdef int64_t size

    def __cinit__(self, pa, int64_t size):
        self.buffer = pa.allocate_buffer(size, resizable=True)
        self.start = <uint8_t *><uintptr_t>self.buffer.address
        self.size = size

    cdef int hold(self, int64_t size) except -1:
        """Make room for ``size`` bytes, keeping what is there."""
        if size > self.size:
            self.size = max(size, self.size + (self.size >> 1))
            self.buffer.resize(self.size)
            self.start = <uint8_t *><uintptr_t>self.buffer.address
        return 0

    cdef object done(self, int64_t size):
        """The buffer, cut to ``size`` bytes; memory that was hardly used is given back."""
        self.buffer.resize(size, shrink_to_fit=size < self.size >> 1)
        return self.buffer
