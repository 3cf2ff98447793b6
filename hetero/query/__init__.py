"""Queries: which devices support which nodes of a model."""
