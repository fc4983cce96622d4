#include "bind_spawn.h"

#include <stdlib.h>

#include "spawn.h"

/* The strings of a list of bytes, which keeps them; NULL-terminated, to be freed. */
static char **strings_of(PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    char **strings = calloc((size_t)count + 1, sizeof *strings);
    if (strings == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &strings[i], NULL) != 0) {
            free(strings);
            return NULL;
        }
    return strings;
}

static bool numbers_of(PyObject *list, struct spawn_plan *plan)
{
    plan->fd_count = (size_t)PyList_Size(list);
    plan->fds = calloc(plan->fd_count + 1, sizeof *plan->fds);
    if (plan->fds == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < plan->fd_count; i++) {
        plan->fds[i] = (int)PyLong_AsLong(PyList_GetItem(list, (Py_ssize_t)i));
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

PyObject *spawn_process(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *argv, *environment, *fds;
    struct spawn_plan plan = {0};
    pid_t pid = -1;
    if (!PyArg_ParseTuple(args, "O!O!O!i", &PyList_Type, &argv, &PyList_Type, &environment,
                          &PyList_Type, &fds, &plan.null_fd))
        return NULL;
    plan.argv = strings_of(argv);
    plan.environment = plan.argv != NULL ? strings_of(environment) : NULL;
    if (plan.environment != NULL && numbers_of(fds, &plan)) {
        Py_BEGIN_ALLOW_THREADS
        pid = spawn_helper(&plan);
        Py_END_ALLOW_THREADS
        if (pid < 0)
            PyErr_SetFromErrno(PyExc_OSError);
    }
    free(plan.argv);
    free(plan.environment);
    free(plan.fds);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(pid);
}
