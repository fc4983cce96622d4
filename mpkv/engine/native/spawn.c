/* Starts helper processes that the kernel ends with the engine, whatever state they are in.
 *
 * The parent-death signal follows the thread that starts a process: it is sent when that thread
 * ends. It must be set before anything can stop the child, so between vfork and exec, which the
 * standard library has no way to do but by running Python there.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif
#define FIRST_FD (STDERR_FILENO + 1)

struct plan {
    char **argv;
    char **environment;
    int *fds;
    size_t fd_count;
    int null_fd;
    pid_t parent;
    sigset_t mask;
};

/* Descriptors of libraries that do not mark theirs must not keep anything open over there. */
static void mark_all_close_on_exec(void)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, FIRST_FD, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
        return;
#endif
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    for (int fd = FIRST_FD; fd < (int)limit.rlim_cur; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Python's handlers must not run in the child, which has the parent's memory. What Python
 * ignores is not to be ignored over there; what whoever started the engine ignores, is. */
static void reset_signals(const sigset_t *mask)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0)
            continue;
        if (action.sa_handler != SIG_IGN || number == SIGPIPE || number == SIGXFSZ) {
            action = (struct sigaction){.sa_handler = SIG_DFL};
            sigaction(number, &action, NULL);
        }
    }
    sigprocmask(SIG_SETMASK, mask, NULL);
}

/* In the child, before exec: only system calls. Returns the errno of what failed. */
static int become_helper(const struct plan *plan)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return errno;
    /* The engine may have died before the line above. */
    if (getppid() != plan->parent)
        _exit(1);
    reset_signals(&plan->mask);
    /* Whatever a library prints: the engine's own output is not for it. */
    if (dup2(plan->null_fd, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return errno;
    mark_all_close_on_exec();
    for (size_t i = 0; i < plan->fd_count; i++)
        if (fcntl(plan->fds[i], F_SETFD, 0) != 0)
            return errno;
    execve(plan->argv[0], plan->argv, plan->environment);
    return errno;
}

/* Returns the pid, or -1 with errno set. */
static pid_t start(struct plan *plan)
{
    sigset_t all;
    volatile int failure = 0;
    plan->parent = getpid();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &plan->mask);
    pid_t pid = vfork();
    if (pid == 0) {
        failure = become_helper(plan);
        _exit(127);
    }
    int no_child = errno;
    pthread_sigmask(SIG_SETMASK, &plan->mask, NULL);
    if (pid < 0)
        errno = no_child;
    else if (failure != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        errno = failure;
        pid = -1;
    }
    return pid;
}

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

static bool numbers_of(PyObject *list, struct plan *plan)
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

static PyObject *spawn(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *argv, *environment, *fds;
    struct plan plan = {0};
    pid_t pid = -1;
    if (!PyArg_ParseTuple(args, "O!O!O!i", &PyList_Type, &argv, &PyList_Type, &environment,
                          &PyList_Type, &fds, &plan.null_fd))
        return NULL;
    plan.argv = strings_of(argv);
    plan.environment = plan.argv != NULL ? strings_of(environment) : NULL;
    if (plan.environment != NULL && numbers_of(fds, &plan)) {
        Py_BEGIN_ALLOW_THREADS
        pid = start(&plan);
        Py_END_ALLOW_THREADS
        if (pid < 0)
            PyErr_SetFromErrno(PyExc_OSError);
    }
    free(plan.argv);
    free(plan.environment);
    free(plan.fds);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(pid);
}

static PyMethodDef methods[] = {
    {"spawn", spawn, METH_VARARGS,
     "spawn(argv, environment, fds, null_fd) -> pid\n\n"
     "Start argv[0] with `fds` under their own numbers; it is killed when this thread ends."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_spawn", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__spawn(void)
{
    return PyModule_Create(&definition);
}
