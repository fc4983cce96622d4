"""The control plane: answers peers' asks and carries out the engine's pulls.

Runs in a process of its own, started as `python -m mpkv.control`. Imports `mpkv.memory`,
`mpkv.messages`, ZeroMQ, msgspec and xxhash; never torch, vLLM, NIXL, numpy, `mpkv.engine` or
`mpkv.registration`. One thread, one loop, beside which only names are looked up and blocks
hashed; everything but `loop`, `hashing`, the two `*_link`s and `network`'s sockets and names
is a state machine that is told the time and what arrived.

    __main__.py          reads the start message, sets logging and limits up
    loop.py              the one event loop: sockets, rings, pidfds
    helper_health.py     beats, and looks at the target and the initiator
    engine_link.py       terminal records on their way to the engine
    supervisor_link.py   new initiators from the supervisor
    compare.py           which fields of two engines differ
    say_once.py          warnings about peers, bounded
    checksums.py         which blocks are checked, and by what
    hashing.py           the thread that makes checksums
    source/              the side that peers pull from
    destination/         the side that pulls for its own engine
    network/             what carries messages between them

`source` and `destination` do not import each other.
"""
