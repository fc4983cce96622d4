"""Structured fuzzing, by `make fuzz`: messages, ring records, metadata, names and segments as
no sane process would make them.

Each target is a module with `run(seconds, seed)`, which returns how many examples it has
tried and raises what is wrong, most of them with the smallest that fails.
"""
