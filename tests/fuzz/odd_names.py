"""The control plane, with a resolver whose answers are odd: the name decides which."""

import sys
import time
import zlib
from collections.abc import Callable

from mpkv.control.__main__ import main
from mpkv.control.network import names

SLOW_S = 1.0
WELL_KNOWN = "known.example"


def _slow() -> str:
    time.sleep(SLOW_S)
    return "127.0.0.1"


def _raises(error: Exception) -> Callable[[], str]:
    def answer() -> str:
        raise error

    return answer


ANSWERS: list[Callable[[], str]] = [
    _slow,
    _raises(OSError(2, "no such name")),
    _raises(UnicodeError("label too long")),
    _raises(ValueError("embedded null character")),
    _raises(IndexError("list index out of range")),
    *(
        # By default arguments each has its own.
        (lambda text=text: text)
        for text in (
            "", "\0", "*", "tcp://127.0.0.1", "no.address", "127.0.0.1", "0.0.0.0", "::", "::1",
            "fe80::1%lo", "fe80::1%nosuchlink", "255.255.255.255", "224.0.0.1", "127.0.0.1\n",
            "1" * 5000,
        )
    ),
]  # fmt: skip


def look_up(host: str) -> str:
    if host == WELL_KNOWN:
        return "127.0.0.1"
    return ANSWERS[zlib.crc32(host.encode()) % len(ANSWERS)]()


if __name__ == "__main__":
    names.first_address = look_up
    sys.exit(main())
