"""Time-stamped events of one process, as JSON lines, for tests and for the demo.

Off unless `EngineSettings.trace_dir` is set: `open_trace("")` costs one call that does
nothing per event.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

Trace = Callable[..., None]


def open_trace(trace_dir: str, process: str) -> Trace:
    """Return `trace(event, **fields)`; it appends to `<trace_dir>/<process>-<pid>.jsonl`.

    Every line carries `event`, `at` (`time.monotonic()`, shared by all processes of a
    machine), `process` and the fields.
    """
    if not trace_dir:
        return lambda event, **fields: None
    os.makedirs(trace_dir, exist_ok=True)
    path = os.path.join(trace_dir, f"{process}-{os.getpid()}.jsonl")
    # O_APPEND and one write per line: a reader never sees half a line of ours.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def trace(event: str, **fields: Any) -> None:
        line = {"at": time.monotonic(), "process": process, "event": event, **fields}
        os.write(fd, (json.dumps(line) + "\n").encode())

    return trace
