"""Observability: the present load, observers of requests and devices, and metrics."""
