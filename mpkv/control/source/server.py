"""The source's side: peers that pull from here.

A peer is known by the instance in its Hello. It may say hello on several routes, as one that
knows this engine by two names does; each answer goes back on the route its question came
on. Whatever a peer sends can only be answered, dropped and counted: nothing here waits for
it, and what it can pin is bounded by `Leases`.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from mpkv.control.checksums import Checksums
from mpkv.control.compare import describe, differences, nixl_differences, nixl_version
from mpkv.control.network.wire import (
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
    show_content,
)
from mpkv.control.say_once import SayOnce
from mpkv.control.source.grants import PinTable, holds_more, most_blocks, pin_groups
from mpkv.control.source.leases import Lease, Leases, Pins
from mpkv.control.source.presence import Inbound, Presence
from mpkv.control.source.promises import Promises
from mpkv.errors import WireRefused
from mpkv.memory import Counters, block_ids
from mpkv.messages import ControlStart, TargetReady
from mpkv.trace import Trace

log = logging.getLogger("mpkv.control")

MAX_SESSIONS = 1024
MAX_ROUTES = 8

Send = Callable[[bytes, ToDestination], bool]


class SourceLedger(PinTable, Pins, Protocol):
    """What the source's side needs of the ledger."""


class Source:
    """Answers what destinations send. `send(route, message)` is False if it was dropped."""

    def __init__(
        self,
        start: ControlStart,
        ledger: SourceLedger,
        send: Send,
        target_alive: Callable[[], bool],
        checksums: Checksums,
        counters: Counters,
        trace: Trace,
    ) -> None:
        self.leases = Leases(ledger, target_alive, counters, self._lease_ended)
        self._promises = Promises(checksums)
        self._start = start
        self._ledger = ledger
        self._key_size = ledger.key_size
        self._send = send
        self._target_alive = target_alive
        self._counters = counters
        self._trace = trace
        self._target: TargetReady | None = None
        self._nixl = nixl_version()
        self._by_route: dict[bytes, Inbound] = {}
        # Ordered by the last message, so that the longest silent comes first.
        self._by_instance: OrderedDict[str, Inbound] = OrderedDict()
        self._presence = Presence(self._by_instance, self.leases.holders, self._is_open)
        self._by_address: dict[str, Inbound] = {}
        self._say_once = SayOnce(log)

    def target_ready(self, target: TargetReady) -> None:
        self._target = target

    def receive(self, route: bytes, frames: list[bytes], now: float) -> None:
        """Take one message of whoever is at `route`; never raises for what is in it."""
        if len(frames) != 2:
            self._counters.add("dropped_malformed")
            return
        if frames[0] != PROTOCOL:
            self._foreign(route, frames[0], now)
            return
        try:
            message = decode_to_source(frames[1], self._key_size)
        except WireRefused as error:
            self._counters.add("dropped_malformed")
            log.debug("dropped a message: %s", error)
            return
        if isinstance(message, Hello):
            self._hello(route, message, now)
            return
        peer = self._by_route.get(route)
        if peer is None or message.to != self._start.instance:
            self._unknown(route, message)
            return
        self._heard(peer, now)
        if isinstance(message, Ask):
            self._ask(peer, route, message, now)
        elif isinstance(message, Confirm):
            self._confirm(peer, route, message, now)
        elif isinstance(message, Release):
            if self.leases.release(peer.instance, message.ask):
                self._counters.add("leases_released")
        else:
            self._counters.add("pings")
            self._answer(route, Pong(self._start.instance, message.number))

    def tick(self, now: float) -> float:
        """Do what time asks for; return when to call again at the latest."""
        for peer, route, confirm in self._promises.due():
            self._answer_confirm(peer, route, confirm, now)
        for gone in self._presence.gone(now):
            self._lose(gone, now)
        due = self._presence.due(now)
        expires = self.leases.expire(now)
        return due if expires is None else min(due, expires)

    def connection_ended(self, now: float) -> None:
        """A connection of some peer, or of many, is no more."""
        self._presence.connection_ended(now)

    # --- sessions --------------------------------------------------------------------

    def _hello(self, route: bytes, hello: Hello, now: float) -> None:
        self._counters.add("hellos")
        if hello.instance == self._start.instance:
            itself = Refuse(hello.instance, self._start.node, (), "it is itself")
            self._refuse(route, hello, itself, now)
            return
        differing = differences(self._start.compatibility, hello.compatibility)
        differing += nixl_differences(self._nixl, hello.nixl)
        if differing:
            refusal = Refuse(self._start.instance, self._start.node, differing, "")
            self._refuse(route, hello, refusal, now)
            return
        target = self._target
        if target is None or not self._target_alive():
            self._counters.add("hellos_too_early")
            self._answer(route, Busy(self._start.instance, "its memory is not registered yet"))
            return
        self._admit(route, hello, now)
        self._say_if_unequal(hello.node, hello.address, hello.content, now)
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
                self._ledger.content,
            ),
        )

    def _say_if_unequal(self, node: str, address: str, theirs: bytes, now: float) -> None:
        ours = self._ledger.content
        if ours and theirs and theirs != ours:
            self._say_once(
                f"{printable(node[:64])} ({printable(address[:64])}) gets nothing from here while "
                f"its weights are others: its content is {show_content(theirs)}, ours "
                f"{show_content(ours)}",
                now,
            )

    def _admit(self, route: bytes, hello: Hello, now: float) -> None:
        self._forget_earlier_lives(route, hello, now)
        peer = self._by_instance.get(hello.instance)
        if peer is None:
            if len(self._by_instance) >= MAX_SESSIONS:
                self._forget(next(iter(self._by_instance.values())))
            peer = Inbound(hello.instance, hello.node, hello.address, now)
            self._by_instance[peer.instance] = peer
            self._by_address.setdefault(peer.address, peer)
        # Its leases stay: they belong to this life of the peer, not to a connection.
        self._heard(peer, now)
        if self._by_route.get(route) is not peer:
            # What still arrives from connections that have ended is for pulls long given up.
            self._drop_routes(peer, [r for r in peer.routes if not self._is_open(r)])
            self._drop_routes(peer, peer.routes[: -(MAX_ROUTES - 1)])
            self._by_route[route] = peer
            peer.routes.append(route)
        log.debug("%s (%s) pulls from here", printable(peer.node), printable(peer.address))

    def _forget_earlier_lives(self, route: bytes, hello: Hello, now: float) -> None:
        """Whoever was at this route or address before is over, unless it is still there:
        an address is only what somebody claims."""
        before = self._by_route.get(route)
        if before is not None and before.instance != hello.instance:
            self._drop_routes(before, [route])
            if not before.routes:
                self._forget(before)
        before = self._by_address.get(hello.address)
        if before is None or before.instance == hello.instance:
            return
        if not self._presence.is_connected(before):
            self._forget(before)
            return
        self._say_once(
            f"{printable(hello.node[:64])} and {printable(before.node[:64])} both say that they "
            f"are reached at {printable(hello.address[:64])}: give each node an `advertise` and "
            "`port` of its own",
            now,
        )

    def _heard(self, peer: Inbound, now: float) -> None:
        peer.heard_at = now
        self._by_instance.move_to_end(peer.instance)

    def _is_open(self, route: bytes) -> bool:
        """A route whose connection has ended takes no message; the peer ignores this one."""
        return self._send(route, Pong(self._start.instance, 0))

    def _drop_routes(self, peer: Inbound, routes: list[bytes]) -> None:
        for route in routes:
            del self._by_route[route]
            peer.routes.remove(route)

    def _lose(self, peer: Inbound, now: float) -> None:
        held = self.leases.held(peer.instance)
        if held:
            self._counters.add("leases_dropped", held)
            self._say_once(
                f"{printable(peer.node[:64])} ({printable(peer.address[:64])}, instance "
                f"{peer.instance}) is gone in the middle of {held} pulls; their blocks are free "
                "again",
                now,
            )
        self._forget(peer)

    def _forget(self, peer: Inbound) -> None:
        self._presence.forget(peer)
        self.leases.drop_peer(peer.instance)
        for route in peer.routes:
            del self._by_route[route]
        del self._by_instance[peer.instance]
        if self._by_address.get(peer.address) is peer:
            del self._by_address[peer.address]

    def _refuse(self, route: bytes, hello: Hello, refusal: Refuse, now: float) -> None:
        self._counters.add("hellos_refused")
        why = refusal.detail or describe(refusal.differing, "source")
        who = f"{printable(hello.node[:64])} ({printable(hello.address[:64])})"
        self._say_once(f"refused {who}, which may not pull from here: {why}", now)
        self._answer(route, refusal)

    def _foreign(self, route: bytes, protocol: bytes, now: float) -> None:
        """Something that is not this version of the protocol, if it is one at all."""
        if not protocol.startswith(b"mpkv/") or len(protocol) > 16:
            self._counters.add("dropped_malformed")
            return
        self._counters.add("dropped_foreign")
        self._say_once(
            f"a peer speaks {printable(protocol.decode(errors='replace'))}, this engine speaks "
            f"{PROTOCOL.decode()}: run the same version of mpkv on both",
            now,
        )
        # Our own protocol name in front tells the peer all that it can understand.
        self._answer(route, Busy(self._start.instance, "it speaks another protocol"))

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

    def _ask(self, peer: Inbound, route: bytes, ask: Ask, now: float) -> None:
        self._counters.add("asks")
        # The epoch first: before it changes, the content is not known any more.
        epoch, content = self._ledger.epoch, self._ledger.content
        if self.leases.asked(peer.instance, ask.ask):
            self._counters.add("dropped_duplicate")
        elif not content or ask.content != content:
            detail = f"its content is {show_content(content)}, here {show_content(ask.content)}"
            self._deny(route, ask, Denial.CONTENT, detail)
            self._say_if_unequal(peer.node, peer.address, ask.content, now)
        elif not self._target_alive():
            self._deny(route, ask, Denial.TARGET_DOWN, "its target process is gone")
        else:
            self._grant(peer, route, ask, epoch, now)

    def _grant(self, peer: Inbound, route: bytes, ask: Ask, epoch: int, now: float) -> None:
        content = ask.content
        if not self._promises.room(ask):
            self._deny(route, ask, Denial.QUOTA, "too many blocks wait to be hashed there")
            return
        room = self.leases.room(peer.instance, now)
        # What a window lacks cannot follow later: such an ask waits until its peer's leases end.
        windowed = any(group.window for group in ask.groups)
        cut = windowed and room < min(ask.limit, most_blocks(ask.groups, self._key_size))
        if not room or (cut and self.leases.held(peer.instance)):
            self.leases.waits(peer.instance, now)
            self._deny(route, ask, Denial.QUOTA, "it holds as much as it may for this engine")
            return
        slots, runs, end = pin_groups(self._ledger, ask.groups, min(ask.limit, room))
        short = room < ask.limit and not windowed and holds_more(self._ledger, ask.groups, end)
        if not slots:
            if short:
                self.leases.waits(peer.instance, now)
            self._counters.add("grants_empty")
            self._answer(route, Grant(ask.ask, 0, b"", b"", content, short))
            return
        lease = self.leases.open(peer.instance, ask.ask, slots, epoch, content, ask.lease_ms, now)
        blocks = block_ids(slots)
        grant = Grant(ask.ask, lease.number, pack_runs(runs), blocks, content, short)
        if not self._answer(route, grant):
            self.leases.release(peer.instance, ask.ask)
            return
        self._promises.make(ask, lease, runs, self._key_size)
        self._counters.add("grants")
        self._counters.add("blocks_granted", len(blocks) // 4)
        self._trace(
            "grant", lease=lease.number, peer=peer.node, ask=ask.ask, blocks=len(blocks) // 4
        )

    def _deny(self, route: bytes, ask: Ask, reason: Denial, detail: str) -> None:
        self._counters.add(f"denied_{reason.value}")
        self._answer(route, Denied(self._start.instance, ask.ask, reason, detail))

    def _confirm(self, peer: Inbound, route: bytes, confirm: Confirm, now: float) -> None:
        if not self._promises.wait(peer.instance, route, confirm):
            self._answer_confirm(peer.instance, route, confirm, now)

    def _answer_confirm(self, peer: str, route: bytes, confirm: Confirm, now: float) -> None:
        checksums = self._promises.checksums(confirm.lease)
        loss = self.leases.confirm(peer, confirm.ask, confirm.lease, confirm.content, now)
        if loss is not None:
            self._unconfirmed(route, confirm, loss)
        elif checksums is None:
            self._unconfirmed(route, confirm, Loss.UNCHECKED)
        else:
            self._counters.add("leases_confirmed")
            self._answer(route, Confirmed(confirm.ask, confirm.lease, checksums))

    def _unconfirmed(self, route: bytes, confirm: Confirm, loss: Loss) -> None:
        self._counters.add(f"unconfirmed_{loss.value}")
        self._answer(route, NotConfirmed(confirm.ask, confirm.lease, loss))

    def _lease_ended(self, lease: Lease, loss: Loss) -> None:
        promise = self._promises.drop(lease)
        # A peer that ended it by itself waits for nothing.
        if promise is not None and promise.confirm is not None and loss is not Loss.UNKNOWN:
            self._unconfirmed(promise.route, promise.confirm, loss)

    def _answer(self, route: bytes, message: ToDestination) -> bool:
        if self._send(route, message):
            return True
        self._counters.add("dropped_unsent")
        return False
