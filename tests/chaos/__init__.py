"""Engines that pull from each other while everything around them breaks, by `make chaos`.

One process per engine (`engine.py`: real ledger, real helpers, no vLLM) is ordered about by
one runner (`runner.py`), which kills, stops, cuts and resets as a seeded schedule says and
counts what the engines report. Nothing here is imported by mpkv.
"""
