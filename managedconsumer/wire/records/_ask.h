/* Ask an object with one of its type's methods that take no arguments.
 *
 * librdkafka's messages are asked eight times each; the function behind a method is called without the steps in between.
 */
#ifndef MANAGEDCONSUMER_ASK_H
#define MANAGEDCONSUMER_ASK_H

#include <Python.h>

static PyObject *mc_ask(PyObject *method, PyObject *one) {
#if defined(CYTHON_COMPILING_IN_CPYTHON) && CYTHON_COMPILING_IN_CPYTHON
    if (Py_TYPE(method) == &PyMethodDescr_Type) {
        PyMethodDef *found = ((PyMethodDescrObject *)method)->d_method;
        if (found->ml_flags == METH_NOARGS && Py_TYPE(one) == PyDescr_TYPE(method)) return found->ml_meth(one, NULL);
    }
#endif
    return PyObject_CallFunctionObjArgs(method, one, NULL);
}

#endif
