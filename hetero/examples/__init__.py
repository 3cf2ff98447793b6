"""Examples: a device plugin, a custom operator, and models for the documentation."""
