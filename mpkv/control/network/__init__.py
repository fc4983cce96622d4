"""What carries messages between control planes, and bounds it.

Part of the control-plane process. Knows of neither side: imports nothing of
`mpkv.control.source` or `mpkv.control.destination`.

    wire.py        what control planes say to each other, and its bounds
    sockets.py     the ZeroMQ socket that connects to peers
    inbound.py     the one that peers connect to
    gate.py        how many connections it takes
    limits.py      what the process may use of the machine
    addresses.py   host:port and back
    names.py       looks names up on threads of its own
"""
