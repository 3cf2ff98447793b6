"""Comparisons, boolean logic and selection."""
