"""The `mpkv` command: start a node of a cluster file, or show what would be started.

Runs in a process of its own, which `mpkv launch` replaces by vLLM. Imports mpkv's
configuration; torch and vLLM only where a command cannot do without.
"""
