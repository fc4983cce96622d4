"""The side that peers pull from: looks up what they ask for, pins it, confirms what they READ.

Part of the control-plane process. Never imports `mpkv.control.destination`.

    server.py     sessions of peers that pull from here, and their asks
    presence.py   which of those peers are gone
    grants.py     which blocks an ask gets
    leases.py     what is pinned for whom, and until when
    promises.py   the checksums that go with their confirmations
"""
