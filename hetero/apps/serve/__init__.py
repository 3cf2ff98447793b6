"""Compiled models behind the Open Inference Protocol, by REST and gRPC.

A request takes this path::

    http_protocol -> exchange -> rest -> rest_messages -+
                                                        +-> inference -> served_model -> devices
    grpc_server --------------------> grpc_messages ----+

`inference_request` is the form that both messages have in common, `tensors` encodes and decodes
their data, and `shared_memory` holds data that is not sent. `repository` finds models by name and
version; `model_folder` reads them from a folder. `service` answers all other calls, and has the
limits and access rules of `options`. `completions` and `generation` generate text. `server` runs
both protocols, `workers` several servers.
"""
