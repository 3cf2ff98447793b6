"""Affinities: the device of each node, from pins and from query results."""
