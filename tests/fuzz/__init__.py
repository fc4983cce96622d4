"""Structured fuzzing, by `make fuzz`: messages, ring records and segments as no sane process
would make them.

Each target is a module with `run(seconds, seed)`, which returns how many examples it has
tried and raises what is wrong with the smallest that fails.
"""
