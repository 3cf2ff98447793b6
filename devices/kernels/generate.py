"""Operators that make tensors: constants, ranges, random numbers, windows."""
