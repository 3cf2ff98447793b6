"""Quantisation and integer arithmetic on quantised tensors."""
