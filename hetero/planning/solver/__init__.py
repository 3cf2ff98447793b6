"""Solver: assigns devices to the nodes of a graph, with a proven bound on the optimality gap.

`search.search_plan` takes a `Problem` (numbers only) and returns a `Solution`. All functions are
pure; the head of each module describes its step.
"""
