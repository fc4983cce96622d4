"""The registration process with a fault put into an agent; FAULT in the environment says which,
and FAULTY_LANE, from 1, in whose.

Faults hit the agent's second READ (the first and later ones work), or its start.
"""

import ctypes
import os
import time
from collections.abc import Sequence
from typing import Any

import mpkv.registration.agent
from mpkv.registration import lifeline
from mpkv.registration.__main__ import main
from mpkv.registration.agent import Agent

FAULT = os.environ["FAULT"]
FAULTY_LANE = int(os.environ["FAULTY_LANE"])
HANG_S = 600.0


class FaultyAgent(Agent):
    def __init__(self, name: str, backends: Sequence[str], *, progress_thread: bool) -> None:
        if FAULT == "hang at start":
            time.sleep(HANG_S)
        if FAULT == "hang at start with the GIL":
            ctypes.PyDLL(None).pause()
        super().__init__(name, backends, progress_thread=progress_thread)
        self._faulty = name.endswith(f".{FAULTY_LANE}") == (FAULTY_LANE > 1)
        self._made = 0
        self._peer = ""
        self._second = -1

    def add_peer(self, metadata: bytes) -> str:
        self._peer = super().add_peer(metadata)
        return self._peer

    def make_read(self, *sides: Any) -> int:
        self._made += 1
        if self._made != 2 or not self._faulty:
            return super().make_read(*sides)
        if FAULT == "peer removed behind its back":
            super().remove_peer(self._peer)
        self._second = super().make_read(*sides)
        return self._second

    def post(self, read: int) -> bool:
        if read == self._second:
            if FAULT == "post raises":
                super().post(read)
                raise OSError("injected")
            if FAULT == "post hangs":
                time.sleep(HANG_S)
            if FAULT == "poll raises":
                super().post(read)
                return False
        return super().post(read)

    def poll(self, read: int) -> bool:
        if read == self._second:
            raise OSError("injected")
        return super().poll(read)


if __name__ == "__main__":
    lifeline.START_DEADLINE_S = 1.0
    lifeline.GIL_GRACE_S = 0.5
    mpkv.registration.agent.Agent = FaultyAgent  # type: ignore[misc]
    main()
