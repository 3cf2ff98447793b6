"""Bytes: values on a wire, blobs in a file."""
