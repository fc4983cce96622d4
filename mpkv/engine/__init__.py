"""Runs inside vLLM's engine process (and, for the copy worker, its workers).

The connector and the manager belong to the scheduler thread; the supervisor's one
watcher thread spawns the helper processes and replaces them when they die. May import
vLLM, torch and `mpkv.memory`, never `mpkv.control` or `mpkv.registration`: those run in
processes of their own and are reached through rings.
"""
