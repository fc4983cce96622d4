"""The cluster file, and what an engine is told of it.

`config` and `config_text` read and check the file in `mpkv launch` and its sisters;
`settings` is what passes from there through vLLM's configuration to the engine and its
helpers. Imports nothing of mpkv but `mpkv.errors`.
"""
