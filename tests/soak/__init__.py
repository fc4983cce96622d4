"""Real engines under load, preempted, aborted, reset and robbed of their helpers, by `make soak`.

Two vLLM engines with mpkv get seeded requests that share prefixes and name each other as
sources. Every answer is compared with what an engine without a connector has answered.
"""
