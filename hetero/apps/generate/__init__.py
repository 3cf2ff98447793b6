"""Decoders: a language model over several devices, token by token.

`read_decoder` finds what a decoder's ports are and has the model choose the token itself, by a node
that is placed like any other; `CompiledModel.generate` then runs it: caches are states, which stay
on the devices that make them.
"""
