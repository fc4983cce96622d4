"""The side that pulls for its own engine: greets sources, asks them, has their blocks READ.

Part of the control-plane process. Never imports `mpkv.control.source`.

    client.py      the side as a whole: what arrives goes to what it concerns
    session.py     what is known of one address, and what sessions need of others
    sessions.py    one session per address, however often it is lost and found
    whereabouts.py where a peer's name leads, and when it is looked up again
    admission.py   which pulls cannot even begin
    pulls.py       the life of each of the engine's pulls
    open_pull.py   what is known of one of them, and of its present part
    choice.py      which address it asks next
    rooms.py       those for which their source has no room now
    reads.py       their READs, and what is left of those
    turns.py       how many of them may ask one peer at a time
    answers.py     what the engine, the counters and the trace hear of them
    checks.py      whether what landed is what the source has
    quarantine.py  slots that a READ may still write after its pull failed
    initiators.py  the process that READs, and the peers registered with it
"""
