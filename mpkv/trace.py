"""Time-stamped events of one process, as JSON lines, for tests and for the demo.

Off unless `EngineSettings.trace_dir` is set: `open_trace("")` costs one call that does
nothing per event.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from mpkv.errors import ConfigRefused

log = logging.getLogger("mpkv.trace")

Trace = Callable[..., None]


def open_trace(trace_dir: str, process: str) -> Trace:
    """Return `trace(event, **fields)`; it appends to `<trace_dir>/<process>-<pid>.jsonl`.

    Every line carries `event`, `at` (`time.monotonic()`, shared by all processes of a
    machine), `process` and the fields. Raises ConfigRefused if the file cannot be made.
    """
    if not trace_dir:
        return lambda event, **fields: None
    path = os.path.join(trace_dir, f"{process}-{os.getpid()}.jsonl")
    try:
        os.makedirs(trace_dir, exist_ok=True)
        # O_APPEND and one write per line: a reader never sees half a line of ours.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigRefused(
            f"trace_dir: {path} cannot be written ({error.strerror}); name a directory that "
            "this user may write, or leave tracing off."
        ) from None

    def trace(event: str, **fields: Any) -> None:
        nonlocal fd
        if fd < 0:
            return
        line = {"at": time.monotonic(), "process": process, "event": event, **fields}
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        except OSError as error:
            # What is traced must not suffer from being traced.
            log.warning("%s cannot be written (%s); tracing ends", path, error.strerror)
            os.close(fd)
            fd = -1

    return trace
