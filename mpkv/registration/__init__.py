"""The registration process: NIXL agents that expose the tier and READ from peers' tiers.

Runs in processes of its own, started as `python -m mpkv.registration`: one *target*, whose
memory peers READ, and initiators, which READ from peers. Imports `mpkv.memory`,
`mpkv.messages` and NIXL, never torch, vLLM, `mpkv.engine` or `mpkv.control`.

    __main__.py   reads the start message, takes the role
    lifeline.py   ends the process with the ones it depends on, or when it hangs at start
    tier.py       the mapped data segment
    pulse.py      beats, for others to see, and looks after the process itself
    prefault.py   fills the mapping's page tables in the background
    bindings.py   imports NIXL without importing torch
    agent.py      the one file that calls NIXL
    target.py     the target's whole life
    initiator.py  the initiator's loop: ring records in, results out
    peers.py      the peers an initiator knows, from AddPeer to RemovePeer
    registrar.py  the thread on which peers are registered
    reads.py      open READs: posting, polling, quarantine
    outbox.py     results on their way to the control plane
    peer.py, count.py   types of the above
"""
