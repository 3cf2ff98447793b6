"""Measuring a compiled model: sample inputs, a load generator, and times of stages."""
