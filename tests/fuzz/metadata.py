"""Sources whose NIXL metadata is anything, beside one that behaves.

NIXL may end or hang the initiator over it. That costs its sender, twice at most; whoever
else is pulled from goes on being served, by the same control plane and target.
"""

import contextlib
import random
import time
from collections.abc import Iterator

import msgspec

from mpkv.control.network.wire import MAX_METADATA, Welcome
from tests.support.hostile import hostile_source, renamed, welcome_of
from tests.support.standin import StandIn, make_keys

LENGTHS = [0, 1, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]
BASES = [0, 1, 4096, 1 << 47, (1 << 63) - 1]
TRIES = 3
# Of an initiator that keeps dying: the supervisor waits before it starts another.
OTHERS_S = 30.0
DEADLINE_S = 4.0


def run(seconds: float, seed: int) -> int:
    choices = random.Random(seed)
    with contextlib.ExitStack() as stack:
        source, bystander = (
            stack.enter_context(StandIn(node, blocks=1024)) for node in ("source", "bystander")
        )
        destination = stack.enter_context(
            StandIn("destination", blocks=1024, deadline_s=DEADLINE_S)
        )
        siege = Siege(source, destination, welcome_of(bystander))
        until = time.monotonic() + seconds
        while not siege.examples or time.monotonic() < until:
            siege.examine(choices)
        keys = make_keys("at last", 2)
        bystander.store(keys)
        destination.pull_until(bystander, keys, OTHERS_S)
        destination.wait_idle()
        source.wait_clean()
        destination.wait_clean()
    return siege.examples


class Siege:
    def __init__(self, source: StandIn, destination: StandIn, real: Welcome) -> None:
        self.examples = 0
        self._source = source
        self._destination = destination
        self._real = real
        self._processes = [destination.helper(name).pid for name in ("control", "target")]
        self._serve(0)

    def examine(self, choices: random.Random) -> None:
        self.examples += 1
        name = f"evil {self.examples}"
        base = choices.choice([self._real.base, self._real.base, *BASES])
        blocks = choices.choice([self._real.blocks, self._real.blocks, 1, (1 << 31) - 1])
        own = renamed(self._real, name)
        # Now and then in another's name, in one of the two places or in both.
        metadata = _mutated(choices.choice([own, own, self._real]).metadata, choices)
        agent = choices.choice([own, own, own, self._real]).agent
        welcome = msgspec.structs.replace(
            own, agent=agent, metadata=metadata, base=base, blocks=blocks
        )
        with _explained(f"metadata {metadata.hex()} base {base} blocks {blocks} agent {agent}"):
            died = self._deaths()
            with hostile_source(welcome) as address:
                for number in range(TRIES):
                    self._ask(f"{name}.{number}", address)
                    self._serve(number)
            assert self._deaths() - died <= 2

    def _ask(self, request: str, address: str) -> None:
        keys = make_keys(request, 2)
        self._destination.start_pull(request, address, keys)
        self._destination.wait(request)
        assert not any(self._destination.holds(key) for key in keys)
        self._destination.pulls.finished(request)

    def _serve(self, number: int) -> None:
        """A pull from the source that behaves, by the very same processes."""
        keys = make_keys(f"good {self.examples}.{number}", 2)
        self._source.store(keys)
        self._destination.pull_until(self._source, keys, OTHERS_S)
        for name, pid in zip(("control", "target"), self._processes, strict=True):
            assert self._destination.helper(name).pid == pid, f"the {name} was replaced"

    def _deaths(self) -> int:
        """How many initiators died; those that were ended on purpose do not count."""
        counted = self._destination.ledger.counters("control").read()
        return counted["initiators_ready"] - counted["initiators_recycled"]


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}; with {what}") from error


def _mutated(metadata: bytes, choices: random.Random) -> bytes:
    if choices.random() < 0.5:
        return _rewritten(metadata, choices)
    return _cut(metadata, choices)


def _rewritten(metadata: bytes, choices: random.Random) -> bytes:
    """Of the right form for NIXL, with other bytes in the address that UCX unpacks from it,
    or in its description of the memory."""
    mutated = bytearray(metadata)
    address = metadata.index(b"|c") + 10
    length = int.from_bytes(metadata[address - 8 : address], "little")
    memory = metadata.index(b"|#") + 10
    begin, end = choices.choice([(address, address + length), (memory, len(metadata))])
    for _ in range(choices.randint(1, 3)):
        at = choices.randrange(begin, end)
        mutated[at] = choices.choice([0, 1, 0x7F, 0xFF, mutated[at] ^ (1 << choices.randrange(8))])
    return bytes(mutated)


def _cut(metadata: bytes, choices: random.Random) -> bytes:
    """Cut, stretched, or with other lengths in it."""
    mutated = bytearray(metadata)
    for _ in range(choices.randint(1, 3)):
        at = choices.randrange(len(mutated)) if mutated else 0
        match choices.randrange(6):
            case 0:
                del mutated[at:]
            case 1:
                mutated[at : at + 8] = choices.choice(LENGTHS).to_bytes(8, "little")
            case 2:
                mutated[at:at] = mutated[: choices.randrange(64)]
            case 3:
                del mutated[at : at + choices.randint(1, 16)]
            case 4:
                mutated[at : at + 4] = choices.randbytes(4)
            case 5:
                mutated += bytes(choices.choice([1, 1000, MAX_METADATA]))
    return bytes(mutated[:MAX_METADATA])
