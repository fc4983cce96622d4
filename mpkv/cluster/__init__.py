"""The cluster file, and what an engine is told of it.

`config` is the file as `mpkv launch` and its sisters use it, made of `sections`.
`config_text` reads it, `config_shape` refuses wrong keys and types, `checks` the rest.
`settings` is what passes from there through vLLM's configuration to the engine and its
helpers. What single values may be is the same for both: `rules`, `addresses`, `backends`
and `sizes`; `words` shows a value in a message. Imports nothing of mpkv but `mpkv.errors`.
"""
