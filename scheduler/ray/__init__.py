"""Executor on a Ray cluster: devices as actors, supervision, node discovery, and pools."""
