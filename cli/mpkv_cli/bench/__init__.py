"""`mpkv bench`: what mpkv costs and reaches on this machine, beside what it competes with.

Each benchmark is a module with `measure(...) -> Result`; it runs in the command's own
process, which only asks, waits and counts. Whatever is measured lives in worker processes
(`workers/`), real helpers included, so that none shares a GIL with another. Imports mpkv's
packages of every process, since it plays all of them; vLLM only in what runs inside it or in
a worker of its own.

    commands.py   the commands and their options
    everything.py all benchmarks in turn, and one report of them
    lookup.py, pull.py, register.py, scheduler.py, queues.py, idle.py, scale.py
    result.py     what a benchmark found: figures, tables, chart
    summary.py    medians and their company
    machine.py    what it was measured on
    show.py       tables as text and as Markdown
    plot.py       charts as PNG
    progress.py   what is being done, on stderr
    worker.py     starting, asking and ending worker processes
    standin.py    an engine without vLLM: ledger, tier, helpers, pulls
    steps.py      what its scheduler thread does when it is busy
    probe.py      a peer that only looks up
    exchange.py   a bare ZeroMQ exchange
    raw.py        bare NIXL READs, and what UCX moves them by
    copying.py    a plain copy between shared regions
    queue_kinds.py  the queues that are compared
    resources.py  processor time and memory of a process
    e2e.py        two real engines: e2e_engines.py, e2e_load.py, e2e_samples.py, e2e_report.py
    against.py    what mpkv is compared with
    lookup_vllm.py  vLLM's P2P tier as lookup's rival
    vllm_p2p.py, calm_mpkv.py, calm.py  run inside vLLM: its P2P tier on CPUs, and what lets
                  two engines share two cores
"""
