"""Partitioning: from an affinity to subgraphs, and from these to a plan."""
