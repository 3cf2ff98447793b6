"""Text generation: decoders whose layers are split over several devices.

`read_decoder` determines the ports of an exported decoder, turns its KV caches into states, which
stay on the devices that compute them, and adds a node that samples the next token.
`CompiledModel.generate` then runs prefill and decode steps, with continuous batching.
"""
