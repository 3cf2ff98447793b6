"""Comparison of a model's values on two devices."""
