"""`mpkv demo`: two replicas on this machine, one reuses what the other has computed.

`replica` starts and stops servers, `client` talks to them, `measure` runs the
requests, `report` says what came out. Each server is a process of its own.
"""
