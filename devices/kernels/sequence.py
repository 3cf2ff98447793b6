"""Sequences (Python lists of arrays) and optionals (a value or None)."""
