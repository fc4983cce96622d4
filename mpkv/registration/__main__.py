"""`python -m mpkv.registration --start-fd N`: a target or an initiator.

N is a memfd with a RegistrationStart, which names inherited descriptors by their numbers.
"""

import argparse
import logging
import os
import signal
import sys

import msgspec

from mpkv.errors import MpkvError
from mpkv.memory import Ledger, Ring
from mpkv.messages import RegistrationStart
from mpkv.processes.process import go_first, show_as
from mpkv.registration.bindings import prepare_environment
from mpkv.registration.lifeline import Lifeline
from mpkv.registration.outbox import Outbox
from mpkv.registration.pulse import ControlWatch, Pulse, raise_descriptor_limit
from mpkv.registration.tier import map_tier
from mpkv.trace import open_trace

log = logging.getLogger("mpkv.registration")


def main() -> None:
    # An interrupt from the terminal reaches the whole group; the engine decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m mpkv.registration")
    parser.add_argument("--start-fd", type=int, required=True)
    start = _read_start(parser.parse_args().start_fd)
    show_as(start.role)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s mpkv.{start.role} [{start.node}] %(message)s",
    )
    prepare_environment()
    raise_descriptor_limit()
    go_first()
    try:
        _run(start)
    except Exception as error:
        expected = isinstance(error, MpkvError)
        log.error("the %s cannot go on: %s", start.role, error, exc_info=not expected)
        status = 1
    else:
        status = 0
    sys.stderr.flush()
    # Not sys.exit: tearing an agent down with READs open may hang, and the end of
    # the process ends them anyway.
    os._exit(status)


def _read_start(fd: int) -> RegistrationStart:
    raw = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    return msgspec.msgpack.decode(raw, type=RegistrationStart)


def _run(start: RegistrationStart) -> None:
    if start.role == "target":
        _run_target(start)
    elif start.role == "initiator":
        _run_initiator(start)
    else:
        raise MpkvError(f'role {start.role!r}: expected "target" or "initiator"')


def _run_target(start: RegistrationStart) -> None:
    from mpkv.registration.agent import Agent
    from mpkv.registration.target import expose, idle

    lifeline = Lifeline([start.engine_pidfd])
    agent = Agent(start.agent, start.backends, progress_thread=True)
    counters = Ledger.attach(start.ledger_fd).counters("target")
    expose(agent, map_tier(start.tier), _outbox(start))
    lifeline.started()
    idle(start.engine_pidfd, Pulse(agent.progress, counters, start.bounds))


def _run_initiator(start: RegistrationStart) -> None:
    from mpkv.registration.agent import Agent
    from mpkv.registration.initiator import Initiator

    pidfds = (start.engine_pidfd, start.control_pidfd)
    lifeline = Lifeline(pidfds)
    consumer = Ring.attach(start.from_control.ring_fd).consumer(start.wake_fd)
    ledger = Ledger.attach(start.ledger_fd)
    counters = ledger.counters("initiator")
    names = [start.agent, *(f"{start.agent}.{n}" for n in range(2, start.lanes + 1))]
    agents = [Agent(name, start.backends, progress_thread=False) for name in names]
    initiator = Initiator(
        agents,
        start.tier,
        consumer,
        start.wake_fd,
        _outbox(start),
        counters.add,
        open_trace(start.trace_dir, "initiator"),
        Pulse(
            lambda: initiator.progress(),
            counters,
            start.bounds,
            ControlWatch(ledger, start.control_pidfd, start.bounds),
        ),
    )
    lifeline.started()
    initiator.serve(pidfds)


def _outbox(start: RegistrationStart) -> Outbox:
    ends = start.to_control
    return Outbox(Ring.attach(ends.ring_fd).producer(ends.wake_fd))


if __name__ == "__main__":
    main()
