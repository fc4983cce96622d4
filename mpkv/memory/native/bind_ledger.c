#include "bind_ledger.h"

#include <unistd.h>

#include "bind_engine.h"
#include "bind_table.h"

/* --- making, opening, closing ------------------------------------------------------ */

static bool check_shape(const struct ledger_shape *shape)
{
    if (ledger_shape_valid(shape))
        return true;
    PyErr_Format(PyExc_ValueError,
                 "Expected 1 to %u blocks and keys of %d to %d bytes, found %llu blocks and keys "
                 "of %llu bytes.",
                 LEDGER_BLOCKS_MAX, LEDGER_KEY_SIZE_MIN, LEDGER_KEY_SIZE_MAX,
                 (unsigned long long)shape->blocks, (unsigned long long)shape->key_size);
    return false;
}

static PyObject *ledger_size_of(PyObject *cls, PyObject *arguments)
{
    (void)cls;
    unsigned long long blocks, key_size;
    if (!PyArg_ParseTuple(arguments, "KK", &blocks, &key_size))
        return NULL;
    struct ledger_shape shape = {.blocks = blocks, .key_size = key_size};
    if (!check_shape(&shape))
        return NULL;
    return PyLong_FromUnsignedLongLong(ledger_bytes(&shape));
}

static struct ledger_object *new_ledger(PyObject *cls)
{
    struct ledger_object *self =
        (struct ledger_object *)PyType_GenericAlloc((PyTypeObject *)cls, 0);
    if (self != NULL)
        self->fd = -1;
    return self;
}

static PyObject *ledger_format_fd(PyObject *cls, PyObject *arguments)
{
    int fd;
    unsigned long long blocks, key_size, seed, counters;
    if (!PyArg_ParseTuple(arguments, "iKKKK", &fd, &blocks, &key_size, &seed, &counters))
        return NULL;
    struct ledger_shape shape = {blocks, key_size, seed, counters};
    if (!check_shape(&shape))
        return NULL;
    struct ledger_object *self = new_ledger(cls);
    if (self == NULL)
        return NULL;
    struct refusal why;
    enum segment_result result = ledger_format(&self->ledger, fd, &shape, &why);
    if (result != SEGMENT_OK) {
        segment_error(result, &why);
        Py_DECREF(self);
        return NULL;
    }
    self->visits = PyMem_Calloc(self->ledger.blocks, sizeof *self->visits);
    if (self->visits == NULL || !engine_init(&self->engine, &self->ledger)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->is_engine = true;
    self->fd = fd;
    return (PyObject *)self;
}

static PyObject *ledger_open_fd(PyObject *cls, PyObject *arguments)
{
    int fd;
    unsigned long long counters;
    if (!PyArg_ParseTuple(arguments, "iK", &fd, &counters))
        return NULL;
    struct ledger_object *self = new_ledger(cls);
    if (self == NULL)
        return NULL;
    struct refusal why;
    enum segment_result result = ledger_open(&self->ledger, fd, counters, &why);
    if (result != SEGMENT_OK) {
        segment_error(result, &why);
        Py_DECREF(self);
        return NULL;
    }
    self->fd = fd;
    return (PyObject *)self;
}

static int unmap_and_close(struct ledger_object *self)
{
    self->ledger.shared = NULL;
    if (self->is_engine)
        engine_destroy(&self->engine);
    self->is_engine = false;
    PyMem_Free(self->visits);
    self->visits = NULL;
    int failed = segment_close(&self->ledger.segment);
    if (self->fd >= 0 && close(self->fd) != 0)
        failed = -1;
    self->fd = -1;
    return failed;
}

static PyObject *ledger_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (self->calls > 0) {
        PyErr_SetString(PyExc_RuntimeError, "The ledger is in use by another thread.");
        return NULL;
    }
    if (unmap_and_close(self) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static void ledger_dealloc(PyObject *object)
{
    (void)unmap_and_close((struct ledger_object *)object); /* nobody is left to be told */
    release_instance(object);
}

/* --- single words ------------------------------------------------------------------ */

static PyObject *ledger_get_epoch(PyObject *object, void *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!ledger_is_open(self))
        return NULL;
    return PyLong_FromUnsignedLongLong(load_acquire(&self->ledger.shared->epoch)); /* [EPOCH] */
}

static PyObject *ledger_get_content(PyObject *object, void *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!ledger_is_open(self))
        return NULL;
    uint64_t content[LEDGER_CONTENT_WORDS];
    bool known = ledger_read_content(&self->ledger, content);
    return PyBytes_FromStringAndSize((const char *)content, known ? sizeof content : 0);
}

static shared_u64 *counter(struct ledger_object *self, unsigned int role, unsigned int position)
{
    if (!ledger_is_open(self))
        return NULL;
    if (role < LEDGER_ROLES && position < LEDGER_COUNTERS)
        return &self->ledger.shared->counters[role][position];
    PyErr_SetString(PyExc_IndexError, "No such counter.");
    return NULL;
}

static PyObject *ledger_counter_add(PyObject *object, PyObject *arguments)
{
    unsigned int role, position;
    PyObject *amount;
    if (!PyArg_ParseTuple(arguments, "IIO", &role, &position, &amount))
        return NULL;
    unsigned long long n = PyLong_AsUnsignedLongLong(amount);
    if (PyErr_Occurred())
        return NULL;
    shared_u64 *word = counter((struct ledger_object *)object, role, position);
    if (word == NULL)
        return NULL;
    add_relaxed(word, n);
    Py_RETURN_NONE;
}

static PyObject *ledger_counter_read(PyObject *object, PyObject *arguments)
{
    unsigned int role, position;
    if (!PyArg_ParseTuple(arguments, "II", &role, &position))
        return NULL;
    shared_u64 *word = counter((struct ledger_object *)object, role, position);
    return word == NULL ? NULL : PyLong_FromUnsignedLongLong(load_relaxed(word));
}

static PyObject *ledger_get_published(PyObject *object, void *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!ledger_is_open(self))
        return NULL;
    /* [PUBLISHED] Acquire: without it a block of this count could look not READY yet. */
    return PyLong_FromUnsignedLongLong(load_acquire(&self->ledger.shared->published));
}

static PyObject *ledger_get_fd(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct ledger_object *)object)->fd);
}

static PyObject *ledger_get_blocks(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((struct ledger_object *)object)->ledger.blocks);
}

static PyObject *ledger_get_key_size(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((struct ledger_object *)object)->ledger.key_size);
}

/* --- the type ---------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"size_of", ledger_size_of, METH_VARARGS | METH_STATIC, "Bytes of a segment of this shape."},
    {"format_fd", ledger_format_fd, METH_VARARGS | METH_CLASS, "Make a ledger; takes over the fd."},
    {"open_fd", ledger_open_fd, METH_VARARGS | METH_CLASS, "Map a ledger; takes over the fd."},
    {"close", ledger_close, METH_NOARGS, "Unmap the ledger and close its descriptor."},
    {"find", ledger_find, METH_O, "The block READY under a key, or -1."},
    {"lookup_prefix", ledger_lookup_prefix, METH_O, "How many leading keys are READY."},
    {"contains_many", ledger_contains_many, METH_O, "One byte per key: 1 if it is READY."},
    {"pin_many", ledger_pin_many, METH_O, "A pinned slot per key, MISS_SLOT for a miss."},
    {"pin_prefix", ledger_pin_prefix, METH_O, "Pinned slots of the keys before the first miss."},
    {"pin_slots", ledger_pin_slots, METH_O, "One byte per slot: 1 if it was pinned."},
    {"keys_of", ledger_keys_of, METH_O, "The keys of slots that the caller has pinned."},
    {"ready_besides", ledger_ready_besides, METH_O, "READY slots of other generations."},
    {"unpin_many", ledger_unpin_many, METH_O, "How many slots were still pinned by this owner."},
    {"touch_many", ledger_touch_many, METH_O, "Mark keys as visited."},
    {"counts", ledger_counts, METH_NOARGS, "Blocks by state, and pins by owner."},
    {"allocate", (PyCFunction)(void (*)(void))ledger_allocate, METH_VARARGS | METH_KEYWORDS,
     "(slots, evicted keys), or None."},
    {"publish", (PyCFunction)(void (*)(void))ledger_publish, METH_VARARGS | METH_KEYWORDS,
     "One result byte per slot."},
    {"free", ledger_free, METH_O, "How many slots were given back."},
    {"drop_ready", ledger_drop_ready, METH_NOARGS, "Forget every READY block."},
    {"reclaim", ledger_reclaim, METH_NOARGS, "Free what has drained."},
    {"zero_control_pins", ledger_zero_control_pins, METH_NOARGS, "Take back a dead control plane's pins."},
    {"set_epoch", ledger_set_epoch, METH_O, "Write how often the cache was reset."},
    {"set_content", ledger_set_content, METH_O, "Write what the weights are."},
    {"counter_add", ledger_counter_add, METH_VARARGS, NULL},
    {"counter_read", ledger_counter_read, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"fd", ledger_get_fd, NULL, NULL, NULL},
    {"blocks", ledger_get_blocks, NULL, NULL, NULL},
    {"key_size", ledger_get_key_size, NULL, NULL, NULL},
    {"epoch", ledger_get_epoch, NULL, NULL, NULL},
    {"content", ledger_get_content, NULL, NULL, NULL},
    {"published", ledger_get_published, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, ledger_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mpkv.memory._native.LedgerCore",
    .basicsize = sizeof(struct ledger_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

bool add_ledger_type(PyObject *module)
{
    PyObject *type = add_type(module, &spec);
    Py_XDECREF(type);
    return type != NULL;
}
