"""Serving: compiled models behind the Open Inference Protocol, by REST and gRPC.

A request's bytes become a call (`rest_messages`, `grpc_messages`: one for each transport), which is
the same for both from there on (`call`): `repository` finds the model, `served_model` checks the
inputs and submits them to the devices, `inference` is the request on its way, which `statistics`
counts, and the answer's arrays become bytes again (`tensors`). What is no inference is one table
for both (`service.CALLS`). `http_connection` reads HTTP requests, `app` answers them, and `server`
runs both forms until it is told to stop.
"""
