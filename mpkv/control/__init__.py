"""The control plane: answers peers' asks and carries out the engine's pulls.

Runs in a process of its own, started as `python -m mpkv.control`. Imports `mpkv.memory`,
`mpkv.messages`, ZeroMQ and msgspec; never torch, vLLM, NIXL, numpy, `mpkv.engine` or
`mpkv.registration`. One thread, one loop; everything but `loop`, `sockets` and the two
`*_link`s is a state machine that is told the time and what arrived.

    __main__.py        reads the start message, sets logging up
    loop.py            the one event loop: sockets, rings, pidfds
    sockets.py         the two ZeroMQ sockets and what libzmq says of connections
    wire.py            what control planes say to each other, and its bounds
    compare.py         which fields of two engines differ
    server.py          the source's side: sessions of peers that pull from here
    grants.py          which blocks an ask gets
    leases.py          what is pinned for whom, and until when
    sessions.py        the destination's side: one session per address
    client.py          the destination's side as a whole
    admission.py       which pulls cannot even begin
    pulls.py           the life of each of the engine's pulls
    open_pull.py       what is known of one of them
    quarantine.py      slots that a READ may still write after its pull failed
    initiators.py      the process that READs, and the peers registered with it
    engine_link.py     terminal records on their way to the engine
    supervisor_link.py new initiators from the supervisor
"""
