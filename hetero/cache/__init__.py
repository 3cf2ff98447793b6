"""Storage of compiled models: blobs, imports, and the cache."""
