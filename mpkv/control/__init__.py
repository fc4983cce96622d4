"""The control plane: answers peers' asks and carries out the engine's pulls.

Runs in a process of its own, started as `python -m mpkv.control`. Imports `mpkv.memory`,
`mpkv.messages`, ZeroMQ, msgspec and xxhash; never torch, vLLM, NIXL, numpy, `mpkv.engine` or
`mpkv.registration`. One thread, one loop, beside which only names are looked up and blocks
hashed; everything but `loop`, `sockets`, `hashing`, `names` and the two `*_link`s is a state
machine that is told the time and what arrived.

    __main__.py        reads the start message, sets logging and limits up
    loop.py            the one event loop: sockets, rings, pidfds
    health.py          beats, and looks at the target and the initiator
    limits.py          what the process may use of the machine
    sockets.py         the ZeroMQ socket that connects to peers
    inbound.py         the one that peers connect to
    gate.py            how many connections it takes
    addresses.py       host:port and back
    names.py           looks names up on threads of its own
    wire.py            what control planes say to each other, and its bounds
    compare.py         which fields of two engines differ
    server.py          the source's side: sessions of peers that pull from here
    say_once.py        warnings about peers, bounded
    grants.py          which blocks an ask gets
    leases.py          what is pinned for whom, and until when
    promises.py        the checksums that go with their confirmations
    session.py         what is known of one address, and what sessions need of others
    sessions.py        the destination's side: one session per address
    client.py          the destination's side as a whole
    admission.py       which pulls cannot even begin
    pulls.py           the life of each of the engine's pulls
    open_pull.py       what is known of one of them
    turns.py           how many of them may ask one peer at a time
    answers.py         what the engine, the counters and the trace hear of them
    checks.py          whether what landed is what the source has
    checksums.py       which blocks are checked, and by what
    hashing.py         the thread that makes checksums
    quarantine.py      slots that a READ may still write after its pull failed
    initiators.py      the process that READs, and the peers registered with it
    engine_link.py     terminal records on their way to the engine
    supervisor_link.py new initiators from the supervisor
"""
