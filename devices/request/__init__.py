"""Requests: a device's compiled model, its infer requests, tensors and results."""
