"""Simple models of other eviction policies, for comparison: what share of blocks each hits.

Each is given a trace and a number of blocks; a hit is a leading block of a request that is
there. LRU; ARC (Megiddo and Modha, FAST 2003); S3-FIFO (Yang et al., SOSP 2023); and Belady's
optimum, which knows the future and bypasses what it will not need.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from mpkv_cli.bench.tier_trace import Request

Model = Callable[[Sequence[Request], int], float]


def asked(requests: Sequence[Request]) -> int:
    """How many blocks they ask for together."""
    return sum(map(len, requests))


def lru(requests: Sequence[Request], blocks: int) -> float:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        leading = True
        for block in request:
            if block in held:
                hits += leading
                held.move_to_end(block)
                continue
            leading = False
            held[block] = None
            if len(held) > blocks:
                held.popitem(last=False)
    return hits / asked(requests)


def arc(requests: Sequence[Request], blocks: int) -> float:
    once: OrderedDict[int, None] = OrderedDict()
    often: OrderedDict[int, None] = OrderedDict()
    was_once: OrderedDict[int, None] = OrderedDict()
    was_often: OrderedDict[int, None] = OrderedDict()
    wanted = 0.0
    hits = 0

    def make_room(again: bool) -> None:
        many = len(once) > wanted or (again and len(once) == int(wanted))
        if once and (many or not often):
            was_once[once.popitem(last=False)[0]] = None
        else:
            was_often[often.popitem(last=False)[0]] = None

    for request in requests:
        leading = True
        for block in request:
            if block in once or block in often:
                hits += leading
                once.pop(block, None)
                often[block] = None
                often.move_to_end(block)
                continue
            leading = False
            if block in was_once:
                wanted = min(float(blocks), wanted + max(1.0, len(was_often) / len(was_once)))
                make_room(False)
                del was_once[block]
                often[block] = None
                continue
            if block in was_often:
                wanted = max(0.0, wanted - max(1.0, len(was_once) / len(was_often)))
                make_room(True)
                del was_often[block]
                often[block] = None
                continue
            total = len(once) + len(often) + len(was_once) + len(was_often)
            if len(once) + len(was_once) == blocks:
                if len(once) < blocks:
                    was_once.popitem(last=False)
                    make_room(False)
                else:
                    once.popitem(last=False)
            elif total >= blocks:
                if total == 2 * blocks:
                    was_often.popitem(last=False)
                make_room(False)
            once[block] = None
    return hits / asked(requests)


def s3_fifo(requests: Sequence[Request], blocks: int) -> float:
    small: deque[int] = deque()
    main: deque[int] = deque()
    ghosts: OrderedDict[int, None] = OrderedDict()
    uses: dict[int, int] = {}
    small_size = max(blocks // 10, 1)
    hits = 0

    def evict_main() -> None:
        while main:
            block = main.popleft()
            if not uses[block]:
                del uses[block]
                return
            uses[block] -= 1
            main.append(block)

    def evict() -> None:
        if len(small) < small_size and main:
            evict_main()
            return
        while small:
            block = small.popleft()
            if uses[block] > 1:
                main.append(block)
                if len(main) > blocks - small_size:
                    evict_main()
                    return
                continue
            del uses[block]
            ghosts[block] = None
            if len(ghosts) > blocks - small_size:
                ghosts.popitem(last=False)
            return
        evict_main()

    for request in requests:
        leading = True
        for block in request:
            if block in uses:
                hits += leading
                uses[block] = min(uses[block] + 1, 3)
                continue
            leading = False
            while len(uses) >= blocks:
                evict()
            uses[block] = 0
            (main if ghosts.pop(block, 0) is None else small).append(block)
    return hits / asked(requests)


def belady(requests: Sequence[Request], blocks: int) -> float:
    never = asked(requests)
    following: list[int] = [never] * never
    last: dict[int, int] = {}
    flat = [block for request in requests for block in request]
    for at in range(never - 1, -1, -1):
        following[at] = last.get(flat[at], never)
        last[flat[at]] = at
    held: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = at = 0
    for request in requests:
        leading = True
        for block in request:
            if block in held:
                hits += leading
            else:
                leading = False
            held[block] = following[at]
            heapq.heappush(farthest, (-following[at], block))
            at += 1
            while len(held) > blocks:
                when, evicted = heapq.heappop(farthest)
                if held.get(evicted) == -when:
                    del held[evicted]
    return hits / never


MODELS: dict[str, Model] = {"LRU": lru, "ARC": arc, "S3-FIFO": s3_fifo, "Belady": belady}
