"""The target: exposes the tier to peers' READs, and does nothing else."""

import mmap
import select
import time

from mpkv.errors import HelperFailed
from mpkv.messages import TargetReady
from mpkv.registration.agent import Agent
from mpkv.registration.outbox import Outbox
from mpkv.registration.prefault import prefault
from mpkv.registration.pulse import Pulse

_READY_DEADLINE_S = 5.0


def expose(agent: Agent, tier: mmap.mmap, outbox: Outbox) -> None:
    """Register the tier and tell the control plane how peers reach it."""
    base = agent.register(tier)
    prefault(tier)
    outbox.send(TargetReady(agent.name, agent.metadata(), base))
    deadline = time.monotonic() + _READY_DEADLINE_S
    while not outbox.flush():
        if time.monotonic() > deadline:
            raise HelperFailed(
                f"the ring to the control plane had no room for {_READY_DEADLINE_S:.0f} s; "
                "expected a fresh ring, restart the helpers"
            )
        time.sleep(0.01)


def idle(engine_pidfd: int, pulse: Pulse) -> None:
    """NIXL's progress thread serves the peers; this one beats until the engine's end."""
    poller = select.poll()
    poller.register(engine_pidfd, select.POLLIN)
    while not poller.poll(pulse.beat() * 1000):
        pass
