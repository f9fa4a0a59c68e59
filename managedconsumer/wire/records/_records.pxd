# What other compiled modules see of this one.
cdef class Source:
    cdef bint is_open(self)
    cdef object peek(self, double seconds)
    cdef int take(self) except -1
