"""Compiled models that are kept: blobs and the cache."""
