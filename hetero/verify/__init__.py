"""Verification of vendors' results against the reference device, before the first request."""
