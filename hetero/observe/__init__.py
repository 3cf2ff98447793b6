"""Tracing, metrics and timing of requests."""
