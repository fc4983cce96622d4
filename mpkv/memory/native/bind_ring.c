#include "bind_ring.h"

#include <unistd.h>

#include "ring.h"

/* Calls hold the GIL: they copy one record, and it keeps a side's threads apart. */

static PyObject *producer_type;
static PyObject *consumer_type;

struct ring_object {
    PyObject_HEAD
    struct ring ring;
    int fd;
};

/* Both sides hold their ring's object, so the mapping's memory outlives them; after
 * close() the ring's `shared` is NULL and they refuse to work. */
struct producer_object {
    PyObject_HEAD
    struct ring_object *owner;
    struct ring_producer side;
};

struct consumer_object {
    PyObject_HEAD
    struct ring_object *owner;
    struct ring_consumer side;
};

static bool is_open(const struct ring_object *self)
{
    if (self != NULL && self->ring.shared != NULL)
        return true;
    PyErr_SetString(PyExc_ValueError, "The ring is closed.");
    return false;
}

static bool check_capacity(unsigned long long capacity)
{
    if (ring_capacity_valid(capacity))
        return true;
    PyErr_Format(PyExc_ValueError,
                 "Expected a capacity that is a power of two from %llu to %llu bytes, found "
                 "%llu.",
                 (unsigned long long)RING_CAPACITY_MIN, (unsigned long long)RING_CAPACITY_MAX,
                 capacity);
    return false;
}

static PyObject *ring_size_of(PyObject *cls, PyObject *argument)
{
    (void)cls;
    unsigned long long capacity = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() || !check_capacity(capacity))
        return NULL;
    return PyLong_FromUnsignedLongLong(ring_bytes(capacity));
}

static struct ring_object *new_ring(PyObject *cls)
{
    struct ring_object *self = (struct ring_object *)PyType_GenericAlloc((PyTypeObject *)cls, 0);
    if (self != NULL)
        self->fd = -1;
    return self;
}

static PyObject *finish_ring(struct ring_object *self, int fd, enum segment_result result,
                             const struct refusal *why)
{
    if (result == SEGMENT_OK) {
        self->fd = fd;
        return (PyObject *)self;
    }
    segment_error(result, why);
    Py_DECREF(self);
    return NULL;
}

static PyObject *ring_format_fd(PyObject *cls, PyObject *arguments)
{
    int fd;
    unsigned long long capacity;
    if (!PyArg_ParseTuple(arguments, "iK", &fd, &capacity) || !check_capacity(capacity))
        return NULL;
    struct ring_object *self = new_ring(cls);
    if (self == NULL)
        return NULL;
    struct refusal why;
    return finish_ring(self, fd, ring_format(&self->ring, fd, capacity, &why), &why);
}

static PyObject *ring_open_fd(PyObject *cls, PyObject *arguments)
{
    int fd;
    if (!PyArg_ParseTuple(arguments, "i", &fd))
        return NULL;
    struct ring_object *self = new_ring(cls);
    if (self == NULL)
        return NULL;
    struct refusal why;
    return finish_ring(self, fd, ring_open(&self->ring, fd, &why), &why);
}

static int unmap_and_close(struct ring_object *self)
{
    self->ring.shared = NULL;
    int failed = segment_close(&self->ring.segment);
    if (self->fd >= 0 && close(self->fd) != 0)
        failed = -1;
    self->fd = -1;
    return failed;
}

static PyObject *ring_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (unmap_and_close((struct ring_object *)object) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static void ring_dealloc(PyObject *object)
{
    (void)unmap_and_close((struct ring_object *)object); /* nobody is left to be told */
    release_instance(object);
}

static bool check_claim(enum ring_claim claim, const char *side, shared_u64 *claimed_by)
{
    if (claim == RING_CLAIM_TAKEN)
        PyErr_Format(ring_claimed,
                     "Expected the ring's %s side to be free, found it claimed by process %llu; "
                     "make a new ring, a claim is for the life of one.",
                     side, (unsigned long long)load_relaxed(claimed_by));
    else if (claim == RING_CLAIM_CORRUPT)
        PyErr_SetString(segment_refused,
                        "Expected ring positions within the capacity, found others; have its "
                        "owner make the ring again.");
    return claim == RING_CLAIM_OK;
}

static PyObject *ring_producer_of(PyObject *object, PyObject *argument)
{
    struct ring_object *owner = (struct ring_object *)object;
    int wake_fd = (int)PyLong_AsLong(argument);
    if (PyErr_Occurred() || !is_open(owner))
        return NULL;
    struct producer_object *self =
        (struct producer_object *)PyType_GenericAlloc((PyTypeObject *)producer_type, 0);
    if (self == NULL)
        return NULL;
    enum ring_claim claim =
        ring_claim_producer(&owner->ring, (uint64_t)getpid(), wake_fd, &self->side);
    if (!check_claim(claim, "producer", &owner->ring.shared->producer_pid)) {
        Py_DECREF(self);
        return NULL;
    }
    Py_INCREF(object);
    self->owner = owner;
    return (PyObject *)self;
}

static PyObject *ring_consumer_of(PyObject *object, PyObject *argument)
{
    struct ring_object *owner = (struct ring_object *)object;
    int wake_fd = (int)PyLong_AsLong(argument);
    if (PyErr_Occurred() || !is_open(owner))
        return NULL;
    struct consumer_object *self =
        (struct consumer_object *)PyType_GenericAlloc((PyTypeObject *)consumer_type, 0);
    if (self == NULL)
        return NULL;
    enum ring_claim claim =
        ring_claim_consumer(&owner->ring, (uint64_t)getpid(), wake_fd, &self->side);
    if (!check_claim(claim, "consumer", &owner->ring.shared->consumer_pid)) {
        Py_DECREF(self);
        return NULL;
    }
    Py_INCREF(object);
    self->owner = owner;
    return (PyObject *)self;
}

static PyObject *ring_get_fd(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct ring_object *)object)->fd);
}

static PyObject *ring_get_capacity(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct ring_object *)object)->ring.capacity);
}

static PyObject *ring_get_max_record(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ring_max_record(&((struct ring_object *)object)->ring));
}

static PyObject *producer_push(PyObject *object, PyObject *argument)
{
    struct producer_object *self = (struct producer_object *)object;
    Py_buffer record;
    if (!is_open(self->owner) || !hold_view(argument, "record", 1, &record))
        return NULL;
    uint64_t limit = ring_max_record(&self->owner->ring);
    if ((uint64_t)record.len > limit) {
        PyErr_Format(PyExc_ValueError,
                     "Expected a record of at most %llu bytes, found %zd; make a ring of larger "
                     "capacity or a shorter record.",
                     (unsigned long long)limit, record.len);
        PyBuffer_Release(&record);
        return NULL;
    }
    enum ring_push pushed = ring_push(&self->side, record.buf, (uint64_t)record.len);
    PyBuffer_Release(&record);
    if (pushed == RING_WAKE_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyBool_FromLong(pushed == RING_PUSHED);
}

static PyObject *consumer_pop(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct consumer_object *self = (struct consumer_object *)object;
    uint64_t length;
    if (!is_open(self->owner))
        return NULL;
    switch (ring_look(&self->side, &length)) {
    case RING_EMPTY:
        Py_RETURN_NONE;
    case RING_CORRUPT:
        PyErr_Format(segment_refused,
                     "Expected a whole record at ring position %llu, found an impossible length "
                     "or position; discard the ring and replace the process that writes to it.",
                     (unsigned long long)self->side.head);
        return NULL;
    case RING_RECORD:
        break;
    }
    PyObject *record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (record == NULL)
        return NULL;
    ring_take(&self->side, PyBytes_AsString(record), length);
    return record;
}

static PyObject *consumer_prepare_sleep(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct consumer_object *self = (struct consumer_object *)object;
    if (!is_open(self->owner))
        return NULL;
    if (self->side.wake_fd < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "This consumer was claimed without an eventfd, so nothing would wake it.");
        return NULL;
    }
    return PyBool_FromLong(ring_prepare_sleep(&self->side));
}

static PyObject *consumer_finish_sleep(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct consumer_object *self = (struct consumer_object *)object;
    if (!is_open(self->owner))
        return NULL;
    ring_finish_sleep(&self->side);
    Py_RETURN_NONE;
}

static void producer_dealloc(PyObject *object)
{
    Py_XDECREF((PyObject *)((struct producer_object *)object)->owner);
    release_instance(object);
}

static void consumer_dealloc(PyObject *object)
{
    Py_XDECREF((PyObject *)((struct consumer_object *)object)->owner);
    release_instance(object);
}

static PyMethodDef ring_methods[] = {
    {"size_of", ring_size_of, METH_O | METH_STATIC, "Bytes of a segment for this capacity."},
    {"format_fd", ring_format_fd, METH_VARARGS | METH_CLASS, "Make a ring; takes over the fd."},
    {"open_fd", ring_open_fd, METH_VARARGS | METH_CLASS, "Map a ring; takes over the fd."},
    {"producer", ring_producer_of, METH_O, "Claim the producer's side."},
    {"consumer", ring_consumer_of, METH_O, "Claim the consumer's side."},
    {"close", ring_close, METH_NOARGS, "Unmap the ring and close its descriptor."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef ring_attributes[] = {
    {"fd", ring_get_fd, NULL, NULL, NULL},
    {"capacity", ring_get_capacity, NULL, NULL, NULL},
    {"max_record", ring_get_max_record, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef producer_methods[] = {
    {"push", producer_push, METH_O, "Append a record; False when the ring is full."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef consumer_methods[] = {
    {"pop", consumer_pop, METH_NOARGS, "The next record, or None when the ring is empty."},
    {"prepare_sleep", consumer_prepare_sleep, METH_NOARGS,
     "True: empty, and the next push will signal. False: there is a record."},
    {"finish_sleep", consumer_finish_sleep, METH_NOARGS, "Pushes need not signal any more."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, ring_methods},
    {Py_tp_getset, ring_attributes},
    {0, NULL},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_methods, producer_methods},
    {0, NULL},
};

static PyType_Slot consumer_slots[] = {
    {Py_tp_dealloc, consumer_dealloc},
    {Py_tp_methods, consumer_methods},
    {0, NULL},
};

static PyType_Spec ring_spec = {
    .name = "mpkv.memory._native.RingCore",
    .basicsize = sizeof(struct ring_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = ring_slots,
};

static PyType_Spec producer_spec = {
    .name = "mpkv.memory._native.Producer",
    .basicsize = sizeof(struct producer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = producer_slots,
};

static PyType_Spec consumer_spec = {
    .name = "mpkv.memory._native.Consumer",
    .basicsize = sizeof(struct consumer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = consumer_slots,
};

bool add_ring_types(PyObject *module)
{
    PyObject *ring_type = add_type(module, &ring_spec);
    Py_XDECREF(ring_type);
    producer_type = add_type(module, &producer_spec);
    consumer_type = add_type(module, &consumer_spec);
    return ring_type != NULL && producer_type != NULL && consumer_type != NULL;
}
