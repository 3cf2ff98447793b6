"""Reductions, arg-reductions and cumulative operators."""
