"""Serving: compiled models behind the Open Inference Protocol, by REST and gRPC.

A request's bytes become a call (`rest_messages`, `grpc_messages`: one for each transport), which is
the same for both from there on: `repository` finds the model, `served_model` checks the inputs and
submits them to the devices, `statistics` counts, and the answer's arrays become bytes again
(`tensors`). `app` is the ASGI application with the protocol's routes; `server`
runs it, with the gRPC service beside it, until it is told to stop.
"""
