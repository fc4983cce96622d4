"""The processes of a benchmark, each started as `python -m mpkv_cli.bench.workers.<name>`
and spoken to through `mpkv_cli.bench.worker`.

    engine.py     a stand-in engine with real helpers; serves, pulls, keeps busy
    scheduler.py  the same with a scheduler-shaped loop to be timed
    asker.py      looks up at a given rate
    silent.py     peers that greet and never answer an ask
    echo.py       the other end of a bare ZeroMQ exchange
    nixl.py       one end of a bare NIXL READ
    queue.py      the far side of a queue
"""
