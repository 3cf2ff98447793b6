"""Conformance suite of the Open Inference Protocol for any server, over its REST and gRPC ports.

``python -m tests.oip_conformance URL [--grpc HOST:PORT] [--model NAME]`` prints a line for each
rule of the protocol and its extensions. Inputs are derived from the model's metadata; outputs are
compared with those of the first, plain JSON request.
"""
