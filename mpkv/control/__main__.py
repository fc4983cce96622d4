"""Start of the control-plane process: `python -m mpkv.control --start-fd N`."""

import argparse
import gc
import logging
import os
import signal
import sys

import msgspec

from mpkv.control.loop import ControlPlane
from mpkv.control.network.limits import apply_limits
from mpkv.errors import MpkvError
from mpkv.messages import ControlStart
from mpkv.processes.process import go_first, show_as

log = logging.getLogger("mpkv.control")


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m mpkv.control")
    parser.add_argument("--start-fd", type=int, required=True)
    start = _read_start(parser.parse_args().start_fd)
    show_as("control")
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        # The node's name comes from the cluster file and may hold a percent sign.
        format=f"%(asctime)s %(levelname)s mpkv.control [{start.node.replace('%', '%%')}] "
        "%(message)s",
    )
    apply_limits()
    go_first()
    try:
        plane = ControlPlane(start)
        # What exists now lives as long as the process: full collections need not look at it.
        gc.freeze()
        plane.run()
    except (MpkvError, msgspec.MsgspecError) as error:
        log.error("the control plane ends: %s", error)
        return 1
    return 0


def _read_start(fd: int) -> ControlStart:
    try:
        size = os.fstat(fd).st_size
        return msgspec.msgpack.decode(os.pread(fd, size, 0), type=ControlStart)
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
