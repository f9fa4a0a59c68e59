/* Attributes of a compiled class that the interpreter reads as fast as it reads __slots__ of a Python class.
 *
 * Cython gives an attribute a getter function, which every read has to find and to call (10 ns of the 60 that a message
 * takes).  A member descriptor says where in the object the reference is instead; CPython 3.11 and newer read it in
 * place.
 */
#ifndef MANAGEDCONSUMER_SLOTS_H
#define MANAGEDCONSUMER_SLOTS_H

#include <Python.h>
#include <structmember.h>

/* Where in ``object`` the reference to ``needle`` is, which must be there once; -1 if it is not. */
static Py_ssize_t mc_offset_of(PyObject *object, PyObject *needle) {
    Py_ssize_t size = Py_TYPE(object)->tp_basicsize, offset;
    for (offset = sizeof(PyObject); offset + (Py_ssize_t)sizeof(PyObject *) <= size; offset += sizeof(PyObject *))
        if (*(PyObject **)((char *)object + offset) == needle) return offset;
    return -1;
}

/* Replace the attribute that ``member`` names by one that reads its place directly.  0, or -1 with an exception. */
static int mc_expose(PyTypeObject *type, PyMemberDef *member) {
#if defined(CYTHON_COMPILING_IN_CPYTHON) && CYTHON_COMPILING_IN_CPYTHON
    PyObject *descriptor;
    int failed;
    if (member->offset < 0) return 0; /* the getter stays */
    member->type = T_OBJECT_EX;
    descriptor = PyDescr_NewMember(type, member);
    if (descriptor == NULL) return -1;
    failed = PyDict_SetItemString(type->tp_dict, member->name, descriptor);
    Py_DECREF(descriptor);
    PyType_Modified(type);
    return failed;
#else
    (void)type;
    (void)member;
    return 0;
#endif
}

#endif
