"""A conformance suite of the Open Inference Protocol, for any server: it is asked, not looked into.

``python -m tests.oip_conformance URL [--grpc HOST:PORT] [--model NAME]`` prints a line for
each rule of the protocol and its extensions. Inputs are made of the model's own metadata; that
outputs are right is taken from their being the same in every form.
"""
