"""Serialisation: values in messages, compiled models in blobs."""
