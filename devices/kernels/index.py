"""Operators that pick or place elements by index: gather, scatter, top-k, masks."""
