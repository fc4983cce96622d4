"""Ends this process with the processes it depends on, and when it hangs at start.

A thread of its own does both, because the main thread may be inside NIXL for long.
"""

import faulthandler
import logging
import os
import select
import threading
import time
from collections.abc import Sequence

log = logging.getLogger("mpkv.registration")

START_DEADLINE_S = 30.0
"""A NIXL agent can hang inside its constructor; the supervisor can only start another."""

GIL_GRACE_S = 5.0
"""How much later the start is ended when the hanging code holds the GIL."""

_LEAVE_GRACE_S = 0.5
_EXIT_STUCK = 3


class Lifeline:
    """Watches `pidfds` from construction on.

    When one becomes readable, the main thread has half a second to leave in good order;
    then the process ends with status 0 wherever its threads are.
    """

    def __init__(self, pidfds: Sequence[int]) -> None:
        self._poller = select.poll()
        for pidfd in pidfds:
            self._poller.register(pidfd, select.POLLIN)
        self._started = threading.Event()
        # The thread below cannot run while C code hangs with the GIL held; this C timer can.
        faulthandler.dump_traceback_later(START_DEADLINE_S + GIL_GRACE_S, exit=True)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def started(self) -> None:
        """The start is over; from now on only a death ends the process."""
        self._started.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        died = self._poller.poll(START_DEADLINE_S * 1000)
        if not died and not self._started.is_set():
            log.error(
                "not ready %.0f s after the start, stuck inside NIXL; leaving, so that the "
                "supervisor can start another process",
                START_DEADLINE_S,
            )
            os._exit(_EXIT_STUCK)
        if not died:
            # The one wait without a deadline: a death is all that is left to wait for.
            self._poller.poll()
        time.sleep(_LEAVE_GRACE_S)
        os._exit(0)
