"""Eviction follows SIEVE: checked against a few lines of Python that say what it is."""

import random
import struct

from mpkv.memory import FILLING, PUBLISHED, Ledger


def key(number: int) -> bytes:
    return struct.pack(">II", 0, number)


class Sieve:
    """Keys in the order of publication; the hand walks from old to new and around."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.visited: set[int] = set()
        self.hand = 0

    def evict(self, pinned: set[int]) -> int:
        while True:
            candidate = self.queue[self.hand]
            if candidate in self.visited:
                self.visited.remove(candidate)
            elif candidate not in pinned:
                self.remove(candidate)
                return candidate
            self.hand = (self.hand + 1) % len(self.queue)

    def remove(self, number: int) -> None:
        position = self.queue.index(number)
        self.queue.pop(position)
        self.visited.discard(number)
        self.hand -= position < self.hand
        if self.hand == len(self.queue):
            self.hand = 0


def publish(engine: Ledger, sieve: Sieve, number: int, pinned: set[int], room: int) -> None:
    expected = b""
    if len(sieve.queue) == room:
        expected = key(sieve.evict(pinned))
    allocated = engine.allocate(1, FILLING)
    assert allocated is not None
    slots, evicted = allocated
    assert evicted == expected
    assert engine.publish(slots, key(number), pin=False) == bytes([PUBLISHED])
    sieve.queue.append(number)


def test_unvisited_blocks_leave_in_the_order_of_their_publication() -> None:
    engine = Ledger.create(4, 8)
    sieve = Sieve()
    for number in range(20):
        publish(engine, sieve, number, set(), 4)
    assert engine.contains_many(b"".join(map(key, range(20)))) == bytes(16) + b"\1" * 4
    engine.close()


def test_a_visited_block_survives_one_round_of_the_hand() -> None:
    engine = Ledger.create(3, 8)
    sieve = Sieve()
    for number in range(3):
        publish(engine, sieve, number, set(), 3)
    engine.touch_many(key(0) + key(99))
    sieve.visited.add(0)
    publish(engine, sieve, 3, set(), 3)
    assert sieve.queue == [0, 2, 3]
    engine.touch_many(key(2) + key(3))
    sieve.visited |= {2, 3}
    publish(engine, sieve, 4, set(), 3)
    assert sieve.queue == [2, 3, 4]
    engine.close()


def test_any_process_may_visit_and_pinned_blocks_are_passed_over() -> None:
    rng = random.Random(3)
    room = 16
    engine = Ledger.create(room, 8)
    control = Ledger.attach(engine.fd)
    sieve = Sieve()
    for number in range(3_000):
        pinned: dict[int, bytes] = {}
        for chosen in rng.sample(sieve.queue, min(len(sieve.queue), 3)):
            if rng.random() < 0.5:
                control.touch_many(key(chosen))
            else:
                pinned[chosen] = control.pin_many(key(chosen))
            sieve.visited.add(chosen)
        publish(engine, sieve, number, set(pinned), room)
        assert control.unpin_many(b"".join(pinned.values())) == len(pinned)
        if rng.random() < 0.1:
            gone = rng.choice(sieve.queue)
            slot = engine.pin_many(key(gone))
            engine.unpin_many(slot)
            assert engine.free(slot) == 1
            sieve.remove(gone)
    control.close()
    engine.close()


def test_an_allocation_that_fails_leaves_the_order_as_it_was() -> None:
    engine = Ledger.create(4, 8)
    sieve = Sieve()
    for number in range(4):
        publish(engine, sieve, number, set(), 4)
    held = engine.pin_many(key(2))
    assert engine.allocate(4, FILLING) is None
    engine.unpin_many(held)
    allocated = engine.allocate(4, FILLING)
    assert allocated is not None
    assert sorted(allocated[1][i : i + 8] for i in range(0, 32, 8)) == [key(n) for n in range(4)]
    engine.close()
