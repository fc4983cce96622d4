"""The source's side: peers that pull from here.

A peer is known by the instance in its Hello and reached by the route its last Hello came
on. Whatever a peer sends can only be answered, dropped and counted: nothing here waits
for it, and what it can pin is bounded by `Leases`.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mpkv.control.compare import describe, differences
from mpkv.control.grants import PinTable, pin_groups
from mpkv.control.leases import Leases, Pins
from mpkv.control.wire import (
    PROTOCOL,
    Ask,
    Busy,
    Confirm,
    Confirmed,
    Denial,
    Denied,
    Grant,
    Hello,
    Loss,
    NotConfirmed,
    Ping,
    Pong,
    Refuse,
    Release,
    ToDestination,
    Welcome,
    decode_to_source,
    pack_runs,
    printable,
)
from mpkv.errors import WireRefused
from mpkv.memory import Counters, block_ids
from mpkv.messages import ControlStart, TargetReady
from mpkv.trace import Trace

log = logging.getLogger("mpkv.control")

MAX_SESSIONS = 1024
MAX_REFUSALS_LOGGED = 1024

Send = Callable[[bytes, ToDestination], bool]


class SourceLedger(PinTable, Pins, Protocol):
    """What the source's side needs of the ledger."""


@dataclass(slots=True)
class Inbound:
    """One life of one peer."""

    instance: str
    node: str
    address: str
    route: bytes


class Source:
    """Answers what destinations send. `send(route, message)` is False if it was dropped."""

    def __init__(
        self,
        start: ControlStart,
        ledger: SourceLedger,
        send: Send,
        target_alive: Callable[[], bool],
        counters: Counters,
        trace: Trace,
    ) -> None:
        self.leases = Leases(ledger, target_alive, counters)
        self._start = start
        self._ledger = ledger
        self._key_size = ledger.key_size
        self._send = send
        self._target_alive = target_alive
        self._counters = counters
        self._trace = trace
        self._target: TargetReady | None = None
        # Ordered by the last Hello or Ping, so that the longest silent comes first.
        self._by_route: OrderedDict[bytes, Inbound] = OrderedDict()
        self._by_instance: dict[str, Inbound] = {}
        self._by_address: dict[str, Inbound] = {}
        self._refusals: set[str] = set()

    def target_ready(self, target: TargetReady) -> None:
        self._target = target

    def receive(self, route: bytes, frames: list[bytes], now: float) -> None:
        """Take one message of whoever is at `route`; never raises for what is in it."""
        if len(frames) != 2:
            self._counters.add("dropped_malformed")
            return
        if frames[0] != PROTOCOL:
            self._foreign(route, frames[0])
            return
        try:
            message = decode_to_source(frames[1], self._key_size)
        except WireRefused as error:
            self._counters.add("dropped_malformed")
            log.debug("dropped a message: %s", error)
            return
        if isinstance(message, Hello):
            self._hello(route, message)
            return
        peer = self._by_route.get(route)
        if peer is None or message.to != self._start.instance:
            self._unknown(route, message)
        elif isinstance(message, Ask):
            self._ask(peer, message, now)
        elif isinstance(message, Confirm):
            self._confirm(peer, message, now)
        elif isinstance(message, Release):
            if self.leases.release(peer.instance, message.ask):
                self._counters.add("leases_released")
        else:
            self._counters.add("pings")
            self._by_route.move_to_end(route)
            self._answer(route, Pong(self._start.instance, message.number))

    def tick(self, now: float) -> float | None:
        """Do what time asks for; return when to call again at the latest."""
        return self.leases.expire(now)

    # --- sessions --------------------------------------------------------------------

    def _hello(self, route: bytes, hello: Hello) -> None:
        self._counters.add("hellos")
        self._forget_earlier_lives(route, hello)
        if hello.instance == self._start.instance:
            self._refuse(route, hello, Refuse(hello.instance, self._start.node, (), "it is itself"))
            return
        differing = differences(self._start.compatibility, hello.compatibility)
        if differing:
            self._refuse(
                route, hello, Refuse(self._start.instance, self._start.node, differing, "")
            )
            return
        target = self._target
        if target is None or not self._target_alive():
            self._counters.add("hellos_too_early")
            self._answer(route, Busy(self._start.instance, "its memory is not registered yet"))
            return
        self._admit(Inbound(hello.instance, hello.node, hello.address, route))
        self._answer(
            route,
            Welcome(
                self._start.instance,
                self._start.node,
                target.agent,
                target.metadata,
                target.base,
                self._start.tier.blocks,
                self._start.tier.block_bytes,
                self._ledger.epoch,
            ),
        )

    def _forget_earlier_lives(self, route: bytes, hello: Hello) -> None:
        """A route or an address that names another instance has lost the old one."""
        for known in (self._by_route.get(route), self._by_address.get(hello.address)):
            if known is not None and known.instance != hello.instance:
                self._forget(known)

    def _admit(self, peer: Inbound) -> None:
        again = self._by_instance.get(peer.instance)
        if again is not None:
            # Its leases stay: they belong to this life of the peer, not to a connection.
            self._unlist(again)
        elif len(self._by_instance) >= MAX_SESSIONS:
            self._forget(next(iter(self._by_route.values())))
        self._by_route[peer.route] = peer
        self._by_instance[peer.instance] = peer
        self._by_address[peer.address] = peer
        log.debug("%s (%s) pulls from here", printable(peer.node), printable(peer.address))

    def _forget(self, peer: Inbound) -> None:
        self.leases.drop_peer(peer.instance)
        self._unlist(peer)

    def _unlist(self, peer: Inbound) -> None:
        self._by_route.pop(peer.route, None)
        self._by_instance.pop(peer.instance, None)
        if self._by_address.get(peer.address) is peer:
            del self._by_address[peer.address]

    def _refuse(self, route: bytes, hello: Hello, refusal: Refuse) -> None:
        self._counters.add("hellos_refused")
        known = self._by_instance.get(hello.instance)
        if known is not None:
            self._forget(known)
        why = refusal.detail or describe(refusal.differing, "source")
        who = f"{printable(hello.node[:64])} ({printable(hello.address[:64])})"
        self._warn_once(f"refused {who}, which may not pull from here: {why}")
        self._answer(route, refusal)

    def _foreign(self, route: bytes, protocol: bytes) -> None:
        """Something that is not this version of the protocol, if it is one at all."""
        if not protocol.startswith(b"mpkv/") or len(protocol) > 16:
            self._counters.add("dropped_malformed")
            return
        self._counters.add("dropped_foreign")
        self._warn_once(
            f"a peer speaks {protocol.decode(errors='replace')}, this engine speaks "
            f"{PROTOCOL.decode()}: run the same version of mpkv on both"
        )
        # Our own protocol name in front tells the peer all that it can understand.
        self._answer(route, Busy(self._start.instance, "it speaks another protocol"))

    def _warn_once(self, text: str) -> None:
        """Say each thing once, and not endlessly many things."""
        if text not in self._refusals and len(self._refusals) < MAX_REFUSALS_LOGGED:
            self._refusals.add(text)
            log.warning("%s", text)

    def _unknown(self, route: bytes, message: Ask | Confirm | Release | Ping) -> None:
        """Not of this session: of an earlier life of ours, or before any Hello."""
        self._counters.add("dropped_unknown_session")
        ours = self._start.instance
        if isinstance(message, Confirm):
            unconfirmed = NotConfirmed(message.ask, message.lease, Loss.UNKNOWN)
            self._answer(route, unconfirmed)
        elif not isinstance(message, Release):
            ask = message.ask if isinstance(message, Ask) else 0
            self._answer(route, Denied(ours, ask, Denial.UNKNOWN_SESSION, "say hello first"))

    # --- asks ------------------------------------------------------------------------

    def _ask(self, peer: Inbound, ask: Ask, now: float) -> None:
        self._counters.add("asks")
        epoch = self._ledger.epoch
        if self.leases.asked(peer.instance, ask.ask):
            self._counters.add("dropped_duplicate")
        elif ask.epoch != epoch:
            self._deny(
                peer, ask, Denial.EPOCH, f"content epoch {epoch} there, {ask.epoch} in the pull"
            )
        elif not self._target_alive():
            self._deny(peer, ask, Denial.TARGET_DOWN, "its target process is gone")
        else:
            self._grant(peer, ask, epoch, now)

    def _grant(self, peer: Inbound, ask: Ask, epoch: int, now: float) -> None:
        room = self.leases.room(peer.instance)
        if not room:
            self._deny(peer, ask, Denial.QUOTA, "it holds as much as it may for this engine")
            return
        slots, runs = pin_groups(self._ledger, ask.groups, min(ask.limit, room))
        if not slots:
            self._counters.add("grants_empty")
            self._answer(peer.route, Grant(ask.ask, 0, b"", b"", epoch))
            return
        lease = self.leases.open(peer.instance, ask.ask, slots, epoch, ask.lease_ms, now)
        blocks = block_ids(slots)
        grant = Grant(ask.ask, lease.number, pack_runs(runs), blocks, epoch)
        if not self._answer(peer.route, grant):
            self.leases.release(peer.instance, ask.ask)
            return
        self._counters.add("grants")
        self._counters.add("blocks_granted", len(blocks) // 4)
        self._trace(
            "grant", lease=lease.number, peer=peer.node, ask=ask.ask, blocks=len(blocks) // 4
        )

    def _deny(self, peer: Inbound, ask: Ask, reason: Denial, detail: str) -> None:
        self._counters.add(f"denied_{reason.value}")
        self._answer(peer.route, Denied(self._start.instance, ask.ask, reason, detail))

    def _confirm(self, peer: Inbound, confirm: Confirm, now: float) -> None:
        loss = self.leases.confirm(peer.instance, confirm.ask, confirm.lease, confirm.epoch, now)
        if loss is None:
            self._counters.add("leases_confirmed")
            self._answer(peer.route, Confirmed(confirm.ask, confirm.lease))
            return
        self._counters.add(f"unconfirmed_{loss.value}")
        self._answer(peer.route, NotConfirmed(confirm.ask, confirm.lease, loss))

    def _answer(self, route: bytes, message: ToDestination) -> bool:
        if self._send(route, message):
            return True
        self._counters.add("dropped_unsent")
        return False
